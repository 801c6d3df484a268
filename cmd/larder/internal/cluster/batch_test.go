package cluster

import (
	"fmt"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func jobSpec(completions, parallelism int32) batchv1.JobSpec {
	pods := template(nil)
	pods.Spec.RestartPolicy = corev1.RestartPolicyNever
	return batchv1.JobSpec{Completions: &completions, Parallelism: &parallelism, Template: pods}
}

// testJobs has Jobs done: one that is kept, one with an index for each pod, one that is
// deleted once it is done.
func testJobs(t *testing.T, r *running, ns string) {
	indexed, passing := jobSpec(10, 10), jobSpec(3, 3)
	indexed.CompletionMode = ptr.To(batchv1.IndexedCompletion)
	passing.TTLSecondsAfterFinished = ptr.To[int32](0)
	jobs := r.client.BatchV1().Jobs(ns)
	for name, spec := range map[string]batchv1.JobSpec{"plain": jobSpec(20, 5), "indexed": indexed, "passing": passing} {
		_, err := jobs.Create(t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
		must(t, err)
	}
	for name, want := range map[string]int32{"plain": 20, "indexed": 10} {
		eventually(t, name+" is done", func() error {
			job, err := jobs.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if job.Status.Succeeded != want || job.Status.Failed != 0 || job.Status.CompletionTime == nil {
				return fmt.Errorf("status %+v", job.Status)
			}
			if name == "indexed" && job.Status.CompletedIndexes != "0-9" {
				t.Errorf("indexes %s", job.Status.CompletedIndexes)
			}
			return nil
		})
	}
	eventually(t, "the passing job is deleted", func() error {
		_, err := jobs.Get(t.Context(), "passing", metav1.GetOptions{})
		if err == nil {
			return fmt.Errorf("the job still exists")
		}
		return ignore(err, apierrors.IsNotFound)
	})
}

// testCronJob waits for the next minute to begin.
func testCronJob(t *testing.T, r *running, ns string) {
	crons := r.client.BatchV1().CronJobs(ns)
	_, err := crons.Create(t.Context(), &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "minutely"},
		Spec:       batchv1.CronJobSpec{Schedule: "* * * * *", JobTemplate: batchv1.JobTemplateSpec{Spec: jobSpec(1, 1)}},
	}, metav1.CreateOptions{})
	must(t, err)
	eventually(t, "a job of the minute is done", func() error {
		cron, err := crons.Get(t.Context(), "minutely", metav1.GetOptions{})
		if err == nil && (cron.Status.LastSuccessfulTime == nil || len(cron.Status.Active) > 0) {
			err = fmt.Errorf("status %+v", cron.Status)
		}
		return err
	})
}
