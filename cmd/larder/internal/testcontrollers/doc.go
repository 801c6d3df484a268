// Package testcontrollers runs a few of kube-controller-manager's controllers in this process, for
// tests and development.
//
// [Controllers] empty deleted namespaces and delete objects whose owners are gone. In each namespace they publish the
// CA and create the default service account, without which no pod is admitted. There are no workload controllers: a
// Deployment creates no pods.
//
// The controllers have no leader election. They must not run beside a kube-controller-manager,
// which [ControllerManagerHolder] detects, nor in two servers of one store.
//
// When [Controllers.WaitReady] returns nil, pods are admitted in the namespace default. Objects of
// a new kind are collected, and deleted with their namespaces, a few seconds after the kind is
// served. [Controllers.Pause] stops the controllers until its caller resumes them.
//
// New starts no goroutine and does no I/O. Run returns when all controllers and informers have
// ended. Some of upstream's queues end soon after.
package testcontrollers
