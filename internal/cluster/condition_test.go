package cluster

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"drtmx/rdma/inproc"
)

// TestChildThatNeverServes: a data server that neither serves nor dies ends the start
// with one line that says for how long, and what it waits for.
func TestChildThatNeverServes(t *testing.T) {
	_, err := Start(t.Context(), StartOptions{
		Size: Size{Servers: 2}, Provider: inproc.New(inproc.Options{}), Workload: Workload{Name: "any"},
		Command: []string{"sh", "-c", "exec sleep 1000"}, patience: 300 * time.Millisecond,
	})
	if !errors.Is(err, ErrStart) || !strings.Contains(err.Error(), "not ready within 300ms") || strings.Contains(err.Error(), "\n") {
		t.Fatalf("error %v", err)
	}
	if runtime.GOOS == "linux" && !strings.Contains(err.Error(), "1 in state S (sleeping)") {
		t.Errorf("the line does not say what the process waits for: %v", err)
	}
	t.Log(err)
}
