// Package discovery serves the discovery documents: /api, /apis, their groups and versions, /version
// and the index of paths.
//
// The documents of built-in groups do not change. The lists of /apis and of the index also have the groups of CRDs and
// of aggregated servers that are served at the time of the request.
package discovery
