package main

import (
	"strings"
	"testing"
)

// TestTable prints runs with known figures.
func TestTable(t *testing.T) {
	all := map[string][][]outcome{}
	for _, m := range modes {
		for round := range 3 {
			rate := 100.0
			if m.replicas > 0 {
				rate = float64(90 - 10*m.replicas - round)
			}
			all[m.name] = append(all[m.name], []outcome{{Rate: rate, ServerCPU: 1, ClientCPU: 1, Duration: 2, LogBytes: 500, CopyBytes: 500 * float64(max(m.replicas-1, 0))}})
		}
	}
	var out strings.Builder
	printTable(&out, []string{"8"}, all)
	for _, want := range []string{
		"| 8 | memory | 100 | **1.00** (1.00 to 1.00) | 10000.0 |", "| 8 | disk, one copy | 69 | **0.69** (0.68 to 0.70) |", "| 500 | 1000 |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

func TestFlagsAreChecked(t *testing.T) {
	for _, args := range []string{"", "-dir x y", "-dir x -rounds 0", "-nothing"} {
		if _, err := parse(strings.Fields(args)); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}
