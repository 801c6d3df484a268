// Package rollout measures a server's cost under the programs of a real cluster. It runs an unmodified
// kube-controller-manager and kube-scheduler, and kwok, which simulates the kubelets, over
// kube-apiserver and over Larder in turn. Each server has its own empty etcd.
//
// [Phases] names the phases. First the nodes register. Then Run creates Deployments and waits until their pods run. It
// changes the image of the Deployments and waits until all pods are replaced. Then nothing changes for a while. At last
// Run deletes the namespace. Each phase at each server is one Result, whose operations are the pods. It has the CPU
// time of the server, of etcd and of the programs.
//
// Run polls the Deployments or the namespace four times a second until a phase has ended. It returns after all
// processes have ended.
package rollout
