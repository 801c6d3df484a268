// Package nodes tests requests to kubelets, pods and services through a larder process, as kubectl and
// client-go send them: logs, exec, attach, port-forward, cp, and the proxies of nodes, pods and services.
// It has only tests.
//
// The kubelet is an HTTPS server that requires a client certificate. It streams with kubelet's own code and runs real
// processes, whose standard input and output are connected to the client. Other kubelets send wrong responses, stall,
// or never end.
//
// Responses must equal kube-apiserver's:
//
//	go test ./internal/e2e/nodes -run TestRequestsToNodesMatchKubeAPIServer -stock PATH
//
// sends the requests also to the kube-apiserver at PATH (bench/buildapiserver builds one), over the same etcd and the
// same kubelets; -rewrite records its responses. Without -stock Larder's responses are compared with the recorded ones.
package nodes
