// Package openapi writes the OpenAPI documents, and the schemas that field managers and
// custom resources need of them.
//
// A [Describer] lets upstream's installer describe the routes of the same storages to a
// container that nobody serves from, and upstream's builders make documents of it. A
// document is built when it is first asked for and kept compressed. A reader of OpenAPI v2 who
// takes gzip is sent what is kept, a tenth of the document's size; for others it is inflated.
// Those of OpenAPI v3, which are many and never sent compressed, are kept as what is fast. Its
// tag is upstream's: the hash of its JSON. What definitions of custom resources and other
// servers add to the document of OpenAPI v2 is built once and put between the bytes of the
// rest. Descriptions that differ by names and one definition alone come of a [Template], which
// is built once for all of them.
//
// [Models] are the definitions of the built-in kinds. All of them together are large, so they
// are kept no longer than the garbage collector lets them be.
package openapi
