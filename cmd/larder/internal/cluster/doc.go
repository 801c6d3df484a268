// Package cluster runs kube-controller-manager, kube-scheduler and kwok as processes beside an API
// server. It creates nodes, whose kubelets kwok simulates.
//
// Each program has its own client certificate, which the server's CA signs at each start, and
// the rights of its role. The programs listen on no port. Their logs are in files.
//
// [Cluster.Run] is called when the server is ready. It creates the nodes, starts the programs, and
// ends them before it returns. If a program ends unexpectedly, Run ends the others and returns an error with the last
// line of its output. When the context ends, each program gets ten seconds after SIGTERM. On Linux the
// programs also end when this process is killed.
//
// Cluster.Dir, the server's data directory, has these files:
//
//	NAME.kubeconfig       kubeconfig of each program
//	kwok.yaml             kwok's configuration
//	logs/NAME.log         output since the last start
//
// Run starts a goroutine for each program, and returns when all have ended.
package cluster
