// Node loads this file before Azurite. It corrects two things in which Azurite 3.35.0 differs from Azure Blob Storage, and
// one that makes Azurite slow.

const path = require("path");
const program = process.argv[1];
const load = (...names) => require(path.join(path.dirname(program), ...names)).default;

// Azure begins a listing at the name in the parameter `startFrom`, and deltalake needs this parameter. Azurite ignores it.
// Azurite's own parameter `marker` names the last blob of the previous page, so here a listing that has only `startFrom`
// begins after this name.
const containers = load("handlers", "ContainerHandler.js").prototype;

for (const listing of ["listBlobFlatSegment", "listBlobHierarchySegment"]) {
  const original = containers[listing];
  containers[listing] = function (...given) {
    const context = given[given.length - 1];
    const options = given[given.length - 2];
    options.marker = options.marker || context.request.getQuery("startFrom");
    return original.apply(this, given);
  };
}

// Azure refuses each range of an empty blob with the status 416. Azurite answers that the first byte is `bytes 0--1/0`.
const blobs = load("handlers", "BlobHandler.js").prototype;
const errors = load("errors", "StorageErrorFactory.js");
const download = blobs.downloadBlockBlobOrAppendBlob;

blobs.downloadBlockBlobOrAppendBlob = async function (options, context, blob) {
  const range = context.request.getHeader("x-ms-range") || context.request.getHeader("range");
  if (range && blob.properties.contentLength === 0) {
    throw errors.getInvalidPageRange2(context.contextId, "bytes */0");
  }
  return download.call(this, options, context, blob);
};

// Azurite's database LokiJS computes its indexes again after each `findAndRemove`. Azurite calls `findAndRemove` for each
// deleted blob, and every ten minutes for each piece of data that no blob uses: with 5,000 pieces 17 s, in which Azurite
// answers nothing. `remove` of a single document only changes the indexes: 0.1 s.
const { Collection } = require(require.resolve("lokijs", { paths: [path.dirname(program)] }));

Collection.prototype.findAndRemove = function (filter) {
  for (const document of this.find(filter)) this.remove(document);
};
