// One peer of the codec benchmark: Kafka's own classes encode as Kafka's producer does, and decode as its consumer does.
//
// A case is one line of JSON, and so is the answer (bench/turns.py). The fields of a case are those of
// bench/peers/codec.py, and the paths of two files: `records` has keys of `key_bytes` and values of `value_bytes`, one
// after another; `log` has the batches to decode.
//
// Encoding uses MemoryRecordsBuilder, and uses its buffer again for each batch, as a producer's pool does. Decoding does
// the work of a consumer: it checks the CRC of each batch and reads its records one by one. Compressed records are read
// from a stream. Only the offset and the size of the value of each record are used, because every consumer needs these.
//
// tests/kafka_jvm.py starts this peer. Its compiler does not support type arguments, so the code has casts.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.Iterator;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.compress.GzipCompression;
import org.apache.kafka.common.compress.Lz4Compression;
import org.apache.kafka.common.compress.NoCompression;
import org.apache.kafka.common.compress.SnappyCompression;
import org.apache.kafka.common.compress.ZstdCompression;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.CloseableIterator;

public class KafkaCodecPeer {

    private static final double LONG_ENOUGH = 0.3;  // seconds for which the same work is repeated, as in every peer
    private static final double WARM = 2.0;  // seconds of work before the first answer to a case, so that Java compiles hot code
    private static final float AS_LARGE_AS_UNCOMPRESSED = 1 / 1.05f;  // Kafka allows for 5 % more than it estimates

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        BufferedReader cases = new BufferedReader(new InputStreamReader(System.in));
        String line;
        String last = "";
        KafkaCodecPeer peer = null;
        while ((line = cases.readLine()) != null) {
            if (!line.equals(last)) {
                last = line;
                peer = new KafkaCodecPeer(json.readTree(line));
                peer.measure(WARM);
            }
            System.out.println("{\"answer\": " + peer.measure(LONG_ENOUGH) + "}");
            System.out.flush();
        }
    }

    private final boolean encodes;
    private final Compression compression;
    private final byte[][] keys;
    private final byte[][] values;
    private final long startMs;
    private final ByteBuffer buffer;
    private final int batchBytes;
    private final ByteBuffer log;
    private final BufferSupplier buffers = BufferSupplier.create();
    private long seen;  // depends on everything that is read, so that the compiler cannot remove the reading

    private KafkaCodecPeer(JsonNode what) throws Exception {
        encodes = what.get("what").asText().equals("encode");
        String codec = what.get("codec").asText();
        compression = compression(codec);
        int keyBytes = what.get("key_bytes").asInt();
        int valueBytes = what.get("value_bytes").asInt();
        byte[] records = Files.readAllBytes(Paths.get(what.get("records").asText(), new String[0]));
        int count = records.length / (keyBytes + valueBytes);
        keys = new byte[count][];
        values = new byte[count][];
        for (int i = 0; i < count; i++) {
            int start = i * (keyBytes + valueBytes);
            keys[i] = Arrays.copyOfRange(records, start, start + keyBytes);
            values[i] = Arrays.copyOfRange(records, start + keyBytes, start + keyBytes + valueBytes);
        }
        startMs = what.get("start_ms").asLong();
        batchBytes = what.get("batch_bytes").asInt();
        buffer = ByteBuffer.allocate(batchBytes + batchBytes / 4 + 4096);
        log = ByteBuffer.wrap(Files.readAllBytes(Paths.get(what.get("log").asText(), new String[0])));
    }

    private static Compression compression(String codec) {
        if (codec.equals("gzip")) {
            return new GzipCompression.Builder().build();
        } else if (codec.equals("snappy")) {
            return new SnappyCompression.Builder().build();
        } else if (codec.equals("lz4")) {
            return new Lz4Compression.Builder().build();
        } else if (codec.equals("zstd")) {
            return new ZstdCompression.Builder().build();
        } else {
            return new NoCompression.Builder().build();
        }
    }

    /** Million records per second, measured for at least this number of seconds. */
    private double measure(double seconds) {
        long records = 0;
        long started = System.nanoTime();
        double taken = 0;
        while (taken < seconds) {
            records += encodes ? encode() : decode();
            taken = (System.nanoTime() - started) / 1e9;
        }
        return records / taken / 1e6;
    }

    private int encode() {
        MemoryRecordsBuilder batch = batch();
        for (int i = 0; i < keys.length; i++) {
            if (!batch.hasRoomFor(startMs + i, keys[i], values[i], Record.EMPTY_HEADERS)) {
                seen += batch.build().sizeInBytes();
                batch = batch();
            }
            batch.append(startMs + i, keys[i], values[i]);
        }
        seen += batch.build().sizeInBytes();
        return keys.length;
    }

    private MemoryRecordsBuilder batch() {
        buffer.clear();
        MemoryRecordsBuilder batch = new MemoryRecordsBuilder(
            buffer, RecordBatch.MAGIC_VALUE_V2, compression, TimestampType.CREATE_TIME, 0L, -1L,
            RecordBatch.NO_PRODUCER_ID, RecordBatch.NO_PRODUCER_EPOCH, RecordBatch.NO_SEQUENCE, false, false,
            RecordBatch.NO_PARTITION_LEADER_EPOCH, batchBytes);
        batch.setEstimatedCompressionRatio(AS_LARGE_AS_UNCOMPRESSED);
        return batch;
    }

    private int decode() {
        int count = 0;
        Iterator batches = MemoryRecords.readableRecords((ByteBuffer) log.duplicate()).batches().iterator();
        while (batches.hasNext()) {
            RecordBatch batch = (RecordBatch) batches.next();
            batch.ensureValid();
            CloseableIterator records = batch.streamingIterator(buffers);
            while (records.hasNext()) {
                Record record = (Record) records.next();
                seen += record.offset() + record.valueSize();
                count++;
            }
            records.close();
        }
        return count;
    }
}
