package command

import (
	"slices"
	"strings"
	"testing"

	"drtmx/internal/cli"
	"drtmx/txn/stats"
)

// TestRecoveriesBehindOneAnother: the least advanced server comes first, and a
// pipe sees no bar.
func TestRecoveriesBehindOneAnother(t *testing.T) {
	var out strings.Builder
	a := &app{Program: cli.Program{Stderr: &out}, stderr: &out}
	var r recoveries
	if got := r.list(); len(got) != 0 {
		t.Errorf("recoveries before there are any: %v", got)
	}
	r.set(a, 0, stats.Recovering{Phase: "log", Done: 1, Total: 10})
	r.set(a, 2, stats.Recovering{Phase: "models", Done: 1, Total: 10})
	r.set(a, 1, stats.Recovering{Phase: "checkpoint", Done: 9, Total: 10})
	r.set(a, 3, stats.Recovering{Phase: "checkpoint", Done: 3, Total: 10})
	var order []int
	for _, s := range r.list() {
		order = append(order, s.Server)
	}
	if want := []int{3, 1, 0, 2}; !slices.Equal(order, want) {
		t.Errorf("the order is %v, want %v", order, want)
	}
	r.done()
	if got := r.list(); len(got) != 0 || out.Len() > 0 {
		t.Errorf("%v are left, and %q was printed", got, &out)
	}
}
