// Package discovery serves the discovery documents: /api, /apis, their groups and versions, /version
// and the index of paths.
//
// [Documents] describe the built-in groups, which do not change. Each request adds the groups of CRDs
// and of aggregated servers that are served at that time.
package discovery
