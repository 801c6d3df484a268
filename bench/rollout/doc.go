// Package rollout measures a server's cost under the programs of a real cluster. It runs an unmodified
// kube-controller-manager and kube-scheduler, and kwok, which simulates the kubelets, over
// kube-apiserver and over Larder in turn. Each server has its own empty etcd.
//
// [Phases] has the names of the phases. Deployments are created and their pods run; the Deployments get
// another image and all pods are replaced; nothing is changed for a while; the namespace is
// deleted with everything in it. Each phase at each server is one Result, whose operations are
// the pods. It has the CPU time of the server, of etcd and of the programs.
//
// Until a phase has ended, Run asks for the Deployments or the namespace four times a second, which
// is a thousandth of the load. It returns after all processes have ended.
package rollout
