// Package rollout measures a server's cost under the programs of a real cluster. It runs an unmodified
// kube-controller-manager and kube-scheduler, and kwok, which simulates the kubelets, over
// kube-apiserver and over Larder in turn. Each server has its own empty etcd.
//
// [Phases] names the phases. First the nodes register. Then Deployments are created, until their pods run. The
// Deployments get another image, until all pods are replaced. Nothing changes for a while. At last the namespace is
// deleted. Each phase at each server is one Result, whose operations are the pods. It has the CPU time of the server,
// of etcd and of the programs.
//
// Until a phase has ended, Run polls the Deployments or the namespace four times a second, which
// is a thousandth of the load. It returns after all processes have ended.
package rollout
