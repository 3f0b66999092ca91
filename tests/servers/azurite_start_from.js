// Node loads this file before Azurite. Azure Blob Storage begins a listing at the name in the parameter `startFrom`, and
// deltalake needs this parameter. Azurite 3.35.0 ignores the parameter. Azurite's own parameter `marker` names the last
// blob of the previous page, so here a listing that has only `startFrom` begins after this name.

const path = require("path");
const program = process.argv[1];
const handlers = path.join(path.dirname(program), "handlers", "ContainerHandler.js");
const { prototype } = require(handlers).default;

for (const listing of ["listBlobFlatSegment", "listBlobHierarchySegment"]) {
  const original = prototype[listing];
  prototype[listing] = function (...given) {
    const context = given[given.length - 1];
    const options = given[given.length - 2];
    options.marker = options.marker || context.request.getQuery("startFrom");
    return original.apply(this, given);
  };
}
