// Package openapi serves the OpenAPI documents, and makes the schemas for field managers and custom
// resources.
//
// A [Describer] has upstream's installer describe the routes of the storages to a container that
// serves nothing. Upstream's builders make documents of it. The first request for a document builds
// it, and then it is kept compressed. Its tag is upstream's: the hash of its JSON.
//
// A client that accepts gzip gets OpenAPI v2 as it is kept, at a tenth of its size. The documents of
// OpenAPI v3 are many and never sent compressed, so they are kept by a faster algorithm.
//
// The parts of OpenAPI v2 that describe CRDs and aggregated servers are built once, and inserted
// between the bytes of the document of the built-in kinds. Descriptions that differ only by names
// and one schema are made of a [Template], which is built once.
//
// [Models] are the schemas of the built-in kinds. Together they are large, so the garbage collector
// may take them at any time.
package openapi
