// Package cluster plays what the components of a cluster ask of its API server: N kubelets and
// kube-proxies, the controller manager and the scheduler, with the informers, heartbeats and
// lives of pods that docs/bench.md describes.
//
// [Run] starts etcd and the servers itself, one server at a time, and plays the same cluster
// at each: all components connect; the load goes on for a while; the server is ended and
// started again; and when all informers are back it is compared what they have with what there
// is. Requests are due at times of their own, and their latency counts from there.
//
// Components are users of their own with certificates of their own, and nodes may see and
// change only what is theirs. They are played on raw frames of HTTP/2, and on raw HTTP/1.1, so
// that a watch has neither a goroutine (by HTTP/2) nor decodes what it receives: the server
// shares the machine, and what the client uses is in the report.
//
// All goroutines of a play end before Run returns. The lock of an informer may be held when that
// of its node is taken, and that of a node when that of another informer is; connections call
// informers with no lock held.
package cluster
