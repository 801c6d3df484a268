package report

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"unicode"
)

// Benchstat writes results as the output of Go benchmarks, one line for each round, which
// benchstat compares.
func (r *Report) Benchstat(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "goos: %s\ngoarch: %s\n", runtime.GOOS, runtime.GOARCH)
	for _, result := range r.All() {
		if result.Succeeded() == 0 {
			continue // its figures would be those of nothing
		}
		fmt.Fprintf(&b, "%s %d %d ns/op %d p50-ns/op %d p99-ns/op %.4g op/s", benchmarkName(result.Name), result.Succeeded(),
			result.Mean().Nanoseconds(), result.Quantile(50).Nanoseconds(), result.Quantile(99).Nanoseconds(), result.Rate())
		if result.ServerCPU > 0 {
			fmt.Fprintf(&b, " %d server-cpu-ns/op", result.CPUPerOp().Nanoseconds())
		}
		fmt.Fprintf(&b, " %d failures\n", result.Failures())
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// benchmarkName makes a name as Go's benchmarks have.
func benchmarkName(name string) string {
	clean := []rune(strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("_.:=", r) {
			return r
		}
		return '_'
	}, name))
	if len(clean) > 0 {
		clean[0] = unicode.ToUpper(clean[0])
	}
	return "Benchmark" + string(clean)
}
