// Package discovery answers what is served: /api, /apis and what lies below them down to the
// versions, /version and the index of paths.
//
// [Documents] are made from the registry when they are installed. Groups that come and go,
// and those of other servers, are asked for with each request.
package discovery
