// Package rollout measures what the programs of a real cluster cost a server: a stock
// kube-controller-manager, a stock kube-scheduler and kwok, which plays the kubelets, beside a
// stock kube-apiserver and beside Larder in turn, each on an empty etcd of its own.
//
// The programs are as their releases are; so is all that they ask, and when. What a run does is
// said by [Phases]: Deployments are created, their pods scheduled and run; they get another
// image, for which all pods are replaced; then nothing happens for a while but what nodes and
// controllers do unasked; then their namespace is deleted, and everything in it. Each phase of
// each server is one Result, whose operations are the pods, with the CPU time of the server, of
// etcd and of the programs.
//
// Who waits for a phase to end asks for the Deployments, or for the namespace, four times a
// second, which is a thousandth of the load.
//
// All processes belong to Run, which returns after they have ended.
package rollout
