// Package nodes asks kubelets, pods and services through a whole Larder, as kubectl and
// client-go do: logs, exec, attach, port-forward, cp, and the proxies of nodes, pods and
// services. It has no code but tests.
//
// Larder is a real `larder serve`. The kubelet is a real HTTPS server that wants a client
// certificate, streams with the code that kubelets stream with, and runs real processes:
// what is sent arrives at their standard input, and what they print comes back. Others
// beside it lie, stall and never end.
//
// Answers are those of a stock kube-apiserver:
//
//	go test ./internal/e2e/nodes -run TestRequestsToNodesAnswerAsStock -stock PATH
//
// asks the kube-apiserver at PATH (see bench/buildapiserver) beside Larder, over the same etcd and the
// same kubelets; -rewrite records what it says. Without -stock Larder's answers are
// compared with those recorded in testdata.
package nodes
