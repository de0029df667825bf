package lint

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestFuzzTellsFindings: a run that ends while a worker is busy has found nothing; all
// else that fails has.
func TestFuzzTellsFindings(t *testing.T) {
	for name, c := range map[string]struct {
		prints string
		failed bool
	}{
		"passed":      {"PASS\n", false},
		"worker busy": {"--- FAIL: FuzzX (5.07s)\n    context deadline exceeded\nFAIL\nexit status 1\n", false},
		"found":       {"--- FAIL: FuzzX (5.07s)\n    --- FAIL: FuzzX (0.00s)\n        x_test.go:3: context deadline exceeded\n    Failing input written to testdata/fuzz/FuzzX/1\nFAIL\n", true},
		"hung":        {"--- FAIL: FuzzX (5.07s)\n    fuzzing process hung or terminated unexpectedly: exit status 2\nFAIL\n", true},
		"not built":   {"FAIL x [build failed]\n", true},
	} {
		tool := filepath.Join(t.TempDir(), "go")
		status := "0"
		if name != "passed" {
			status = "1"
		}
		if err := os.WriteFile(tool, []byte("#!/bin/sh\ncat <<'END'\n"+c.prints+"END\nexit "+status+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "../../.ci/fuzz", "./x", "FuzzX", "5s")
		cmd.Env = append(os.Environ(), "GO="+tool)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if (err != nil) != c.failed {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
