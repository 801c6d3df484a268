// Package cluster makes a cluster of an API server: it runs kube-controller-manager,
// kube-scheduler and kwok beside it, which are processes of their own, and makes nodes,
// which do not exist and whose kubelets kwok plays.
//
// # Model
//
// Every program has a client certificate of its own and the rights that its role gives it:
// the controllers of kube-controller-manager ask with tokens of their service accounts, and
// kwok is no administrator. Certificates are issued anew by the server's own authority at
// each start. The programs serve nothing themselves, so that clusters do not fight for
// ports; what they say is in files.
//
// # Life
//
// [Cluster.Run] is called once the server is ready. It makes the nodes, starts the programs
// and ends them before it returns. A program that ends by itself ends them all: the error
// tells its last word. When the context ends each is asked to end, and killed if it has not
// after ten seconds. Where the system allows it they die with this process.
//
// # Files
//
// In Config.Dir, which is the server's data directory:
//
//	NAME.kubeconfig       of each program
//	kwok.yaml             kwok's configuration
//	logs/NAME.log         what each said since the last start
//
// # Goroutines
//
// New starts none and does no I/O. Run starts one for each program and one that waits for
// the nodes, and returns when all have ended.
package cluster
