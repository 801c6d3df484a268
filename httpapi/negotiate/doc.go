// Package negotiate finds the form that a client takes an answer in, as kube-apiserver does.
//
// A [Format] is what an Accept header asks for: a media type, a way of writing it, another
// kind than the resource's own. [Usual] knows the headers that nearly all clients send,
// without allocating; [Accepted] applies upstream's rules to any.
//
// The other half is what upstream's router refuses before its handlers see a request, with
// texts of its own: [Producing], [Consuming], [OnlyMethods] and [NothingBelow] wrap handlers
// so that the same is refused here.
package negotiate
