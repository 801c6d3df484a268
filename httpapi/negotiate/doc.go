// Package negotiate negotiates the content of responses as kube-apiserver does.
//
// A [Format] is the result: a media type, whether it is indented, and the kind to convert to, such as
// Table. [Usual] recognizes the Accept headers of nearly all clients without allocating; [Accepted]
// applies upstream's rules to any header.
//
// Upstream's router refuses some requests before its handlers see them, with its own texts.
// [Producing], [Consuming], [OnlyMethods] and [NothingBelow] refuse the same requests with the same
// texts.
package negotiate
