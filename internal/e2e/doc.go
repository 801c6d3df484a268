// Package e2e holds the tests that start larder as a process and use it as its users do: through kubectl,
// Helm, client-go, browsers and raw connections, beside kube-apiserver, and across kills and restarts.
// Tests of kubelets and of attacks are in the packages below it.
//
//	go test ./internal/e2e -run TestKubectl
//	go test ./internal/e2e -run TestHandover -stock PATH   # with a kube-apiserver
//
// With -short, only a few of them run (smoke, in main_test.go).
package e2e
