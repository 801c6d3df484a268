// Package openapi serves the OpenAPI documents, and makes the schemas for field managers and custom
// resources.
//
// A [Describer] lets upstream's installer register the routes of the storages in a go-restful container
// that serves no requests. Upstream's builders make the documents from this container. The first request
// for a document builds it; it is then kept compressed. Its ETag is upstream's: the hash of its JSON.
//
// A client that accepts gzip gets OpenAPI v2 as it is kept, at a tenth of its size. The documents of
// OpenAPI v3 are many and never sent compressed, so a faster algorithm compresses them.
//
// The parts of OpenAPI v2 that describe CRDs and aggregated servers are built once. Their bytes are
// inserted into the document of the built-in kinds. Descriptions that differ only by names and one
// schema are made from a [Template], which is built once.
//
// [Models] are the schemas of the built-in kinds. Together they are large, so the garbage collector
// may free them at any time.
package openapi
