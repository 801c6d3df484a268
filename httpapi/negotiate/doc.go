// Package negotiate negotiates the content of responses as kube-apiserver does.
//
// A [Format] is the result: a media type, whether it is indented, and the kind to convert to, such as
// Table. [Usual] recognizes the Accept headers of nearly all clients without allocating; [Accepted]
// applies upstream's rules to any header.
//
// The other half is what upstream's router refuses before its handlers see a request, with
// texts of its own: [Producing], [Document] and [NothingBelow] refuse the same.
package negotiate
