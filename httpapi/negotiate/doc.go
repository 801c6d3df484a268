// Package negotiate negotiates the content of responses as kube-apiserver does.
//
// A [Format] is the result: a media type, whether it is indented, and the kind to convert to, such as
// Table. [Common] recognizes the Accept headers of nearly all clients without allocating; [Accepted]
// applies upstream's rules to any header.
//
// [Producing], [Document] and [NotFound] reject the requests that upstream's router rejects
// before its handlers, with the router's texts.
package negotiate
