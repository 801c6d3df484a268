package rollout

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// File names of the programs, and of kwok's configuration.
const (
	controllerManager = "kube-controller-manager"
	scheduler         = "kube-scheduler"
	kwok              = "kwok"
	stages            = "stage-fast.yaml"
)

// FindPrograms returns a directory with kube-controller-manager, kube-scheduler, kwok and kwok's stage-fast.yaml: dir
// or, if dir is "", the newest directory of programs that `larder cluster` has built for this user.
func FindPrograms(dir string) (string, error) {
	if dir != "" {
		return dir, complete(dir)
	}
	user, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("rollout: %w", err)
	}
	kept, err := filepath.Glob(filepath.Join(user, "larder", "programs", "*"))
	if err != nil {
		return "", fmt.Errorf("rollout: %w", err)
	}
	var newest os.FileInfo
	for _, d := range kept {
		if info, err := os.Stat(d); err == nil && complete(d) == nil && (newest == nil || info.ModTime().After(newest.ModTime())) {
			dir, newest = d, info
		}
	}
	if dir == "" {
		return "", errors.New("rollout: kube-controller-manager, kube-scheduler and kwok are not built: run `larder cluster` once, which builds them, or name a directory with --programs")
	}
	return dir, nil
}

// complete returns an error if a file is missing in dir.
func complete(dir string) error {
	for _, name := range []string{controllerManager, scheduler, kwok, stages} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("rollout: %w", err)
		}
	}
	return nil
}

// arguments returns the arguments of the programs. Request limits are higher than the defaults, as in clusters with
// many nodes.
func (r *run) arguments(kubeconfigs map[string]string) map[string][]string {
	fast := []string{"--kube-api-qps=200", "--kube-api-burst=400", "--leader-elect=false", "--secure-port=0"}
	return map[string][]string{
		controllerManager: append([]string{
			"--kubeconfig=" + kubeconfigs[controllerManager], "--use-service-account-credentials",
			"--service-account-private-key-file=" + r.started.SigningKey(), "--root-ca-file=" + r.started.CAFile(),
			"--allocate-node-cidrs=false", "--configure-cloud-routes=false",
		}, fast...),
		scheduler: append([]string{"--kubeconfig=" + kubeconfigs[scheduler]}, fast...),
		kwok: {
			"--kubeconfig=" + kubeconfigs[kwok], "--config=" + r.kwokConfig(), "--config=" + filepath.Join(r.config.Programs, stages),
		},
	}
}

func (r *run) kwokConfig() string { return filepath.Join(r.dir, "kwok.yaml") }

// kwokText configures kwok to simulate all nodes.
const kwokText = `apiVersion: config.kwok.x-k8s.io/v1alpha1
kind: KwokConfiguration
options:
  manageAllNodes: true
  nodeLeaseDurationSeconds: 40
  nodeLeaseParallelism: 4
  nodePlayStageParallelism: 4
  podPlayStageParallelism: 4
  enablePodsOnNodeSyncStreamWatch: true
`
