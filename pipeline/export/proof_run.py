"""Proves the tables of the settings' exports, and reports the results."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from deltalake import DeltaTable

from lakelog.dead_letter_tables import export_dead_letters_key
from lakelog.delta_options import delta_options
from pipeline.delta.export_plan import Export, offset_ranges
from pipeline.delta.fresh.snapshot import (
    existing_export,
    exported_head,
    require_compatible,
    require_schemas,
    table_uri,
)
from pipeline.delta.proof.exported_table import open_exported_table
from pipeline.delta.proof.proving import Proof, prove_table
from pipeline.delta.without_spark.deltalake_errors import deltalake_errors
from pipeline.delta.without_spark.topic_records import batch_reader
from pipeline.export.export_request import wanted_export
from pipeline.export.several_exports import chosen_exports
from pipeline.job import JobContext, JobReport, Value
from pipeline.topic_model import topic_schemas
from storage_engine.errors import ConfigError, LogError, UsageError
from storage_engine.quantities import counted
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.chain.transaction_files import newest_decided

SCHEMA_OPTIONS = "--schema", "--key-schema"
"""The options that name the schemas of the values and of the keys of a topic."""


def add_proof_options(parser: argparse.ArgumentParser) -> None:
    """The options of the job `prove`."""
    parser.add_argument(
        "--only",
        metavar="NAME",
        action="append",
        help="prove only the table of this export of the section `exports`; the option may be given several times",
    )
    parser.add_argument(
        "--table-version",
        metavar="N",
        type=int,
        help="prove this version of the table, instead of its newest version",
    )
    parser.add_argument(
        "--since",
        metavar="N",
        type=int,
        help="prove only what changed after version N of the table; the table must have digests (export.digest)",
    )


@dataclass(frozen=True)
class _Result:
    """The proof of one export's table; or the error because of which there is none."""

    name: str
    table: str
    proof: Proof | None
    error: LogError | None = None


def prove_exports(context: JobContext) -> JobReport:
    """Prove the table of each chosen export.

    Raises:
        LogError: the only proof could not be made, or the request is wrong.
    """
    exports = chosen_exports(context)
    version, since = (_version(context, option, len(exports)) for option in ("--table-version", "--since"))
    results = []
    for each in exports:
        table = each.context.settings.required_export().shown_table
        try:
            results.append(_Result(each.name, table, _prove_export(each.context, version, since)))
        except LogError as error:
            if len(exports) == 1:
                raise
            results.append(_Result(each.name, table, None, error))
    return _report(results)


def _version(context: JobContext, option: str, exports: int) -> int | None:
    """The table version that an option of the command line gives."""
    version: int | None = vars(context.arguments).get(option.strip("-").replace("-", "_"))
    if version is not None and (version < 0 or exports > 1):
        problem = f"found {version}" if version < 0 else f"the settings have {exports} exports"
        raise UsageError(
            option,
            problem,
            "Give a table version of 0 or higher. If there are several exports, choose one of them with --only.",
        )
    return version


def _prove_export(context: JobContext, version: int | None, since: int | None) -> Proof:
    wanted = context.settings.required_export()
    if wanted.jdbc is not None:
        raise ConfigError(
            context.settings.place_of("export.jdbc"), "found a table of a database", "prove compares Delta tables only."
        )
    return _prove(context, wanted.topic, partial(wanted_export, context), version, since)


def _prove(
    context: JobContext, topic: str, export: Callable[[TopicState], Export], version: int | None, since: int | None
) -> Proof:
    """
    Args:
        export: the export that made the table, for a state of the topic.
    """
    table = open_exported_table(export(context.topics.state(topic)), version)
    # The state is read after the table, so the log has each record that the table has.
    chain = context.topics.chain(topic)
    state = newest_decided(context.storage, chain)
    with context.work("prove", topic) as shown:
        return prove_table(
            export(state),
            table,
            offset_ranges(state),
            batch_reader(context.storage, chain, state, shown),
            lambda: offset_ranges(context.topics.state(topic)),
            since,
        )


def prove_table_of(context: JobContext, topic: str, table: str, version: int | None, since: int | None) -> JobReport:
    """Prove a table of a topic. The table itself tells how it was exported, so the settings need only name the topic's
    schemas.

    Args:
        table: path or URI; a relative path begins at the root.
        version: the version of the table; None: the newest.
        since: as in prove_table.

    Raises:
        ConfigError: the topic's schemas are missing, or are not those of the export.
        LogError: the proof could not be made.
    """
    path = table_uri(context.storage, table)
    state = context.topics.state(topic)
    exported = exported_head(path, version)
    with deltalake_errors(path, "Nothing was changed.", "cannot be read"):
        there = DeltaTable(path, version=exported.head.version, storage_options=delta_options(path))
        columns = pa.schema(there.schema().to_arrow()).names
        partition_by = there.metadata().partition_columns
    schemas = topic_schemas(context.settings, topic)
    require_schemas(
        state, path, columns, SCHEMA_OPTIONS,
        has_values=schemas.values is not None, has_keys=schemas.keys is not None,
    )  # fmt: skip
    require_compatible(state, schemas, SCHEMA_OPTIONS)

    def export(state: TopicState) -> Export:
        found = existing_export(state, path, exported.stamp, columns, partition_by, schemas)
        return replace(found, dead_letters=f"{context.storage.uri}/{export_dead_letters_key(topic)}")

    return _report([_Result(topic, table, _prove(context, topic, export, version, since))])


def _report(results: list[_Result]) -> JobReport:
    proofs = [each.proof for each in results if each.proof is not None]
    reasons = sum((each.findings.unprovable for each in proofs), Counter[str]())
    answers = [each.answer for each in proofs]
    summary: dict[str, Value] = {
        "answer": _answer(answers, len(results)),
        "tables": len(results),
        "records": sum(each.records for each in proofs),
        "table rows": sum(each.rows for each in proofs),
        "equal": sum(each.findings.equal for each in proofs),
        "different": sum(each.findings.differing for each in proofs),
        "no longer provable": reasons.total(),
        "reasons": dict(reasons),
        "covered by stamps": sum(each.covered for each in proofs),
    }
    if len(results) == 1 and proofs:
        summary = {"table": results[0].table, "table version": proofs[0].version, **summary}
        del summary["tables"]
    return JobReport(
        summary=summary,
        rows=[
            {"table": each.table, "partition": found.partition, "offset": found.offset, "problem": found.problem}
            for each in results
            if each.proof is not None
            for found in each.proof.findings.differences
        ],
        failures=[f"{each.name}: {each.error}" for each in results if each.error is not None],
        warnings=[warning for each in results for warning in _warnings(each)],
        closing=[line for each in results for line in _closing(each)],
        is_wrong="different" in answers,
    )


def _answer(answers: list[str], tables: int) -> str:
    """The answer for all tables. Not every table need have one."""
    if len(answers) < tables and "different" not in answers:
        return "failed"
    return max(answers, key=_weight)


def _weight(answer: str) -> int:
    return ("equal", "equal as far as the log can tell", "different").index(answer)


def _closing(result: _Result) -> list[str]:
    """What the chain of digests shows."""
    proof = result.proof
    if proof is None or proof.chain is None or proof.chain.findings.differing:
        return []
    chain = proof.chain
    checked = f"{counted(chain.stamps, 'stamp')} checked, back to version {chain.oldest}"
    lines = [f"prove: {result.name}: {counted(chain.rows, 'row')} compared with their digests; {checked}"]
    if proof.covered:
        lines.append(
            f"prove: {result.name}: no longer provable from the log for {counted(proof.covered, 'row')}; the chain of stamps"
            " covers them"
        )
    return lines


def _warnings(result: _Result) -> list[str]:
    if result.proof is None:
        return []
    warnings = []
    found = result.proof.findings
    if result.proof.foreign is not None:
        warnings.append(f"{result.name}: another writer committed version {result.proof.foreign}, which changed rows")
    if result.proof.was_restored:
        warnings.append(
            f"{result.name}: the table was restored to an older version, and nothing was exported since; only the records"
            " up to the positions of the older version were compared"
        )
    if result.proof.has_digests and result.proof.chain is None:
        warnings.append(
            f"{result.name}: the chain of digests has ended, so only the log was compared; an export with --rebuild begins"
            " a new chain"
        )
    if columns := result.proof.not_compared:
        warnings.append(
            f"{result.name}: {counted(len(columns), 'column')} not compared, because the table or the model does not"
            f" have it: {', '.join(columns)}"
        )
    if found.differing > len(found.differences):
        warnings.append(f"{result.name}: only the first {len(found.differences)} differences are listed")
    return warnings
