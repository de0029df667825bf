package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, name string, p *piece) string {
	raw, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestTables adds up reports with known figures; one with a fault is an error.
func TestTables(t *testing.T) {
	a := &piece{Kinds: []string{"kill"}, Seed: 2, Fabric: "shm", Failovers: 2, Acknowledged: 10, Commit: "c", Events: []event{{Kind: "kill", Stalls: []float64{3, 1}}}}
	b := &piece{Kinds: []string{"cut"}, Seed: 1, Fabric: "tcp", Failovers: 1, Acknowledged: 5, Commit: "c", Events: []event{{Kind: "cut", From: "all", Stalls: []float64{2}}}, Patient: map[string]int{"conflict": 1}}
	all, err := readAll([]string{write(t, "a", a), write(t, "b", b)})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := tables(&out, all); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"**3 failovers** and 0 moves in 2 events; 15 transactions", "| kill | 2 | 1.00 | 3.00 | 3.00 | 3.00 |", "| cut from all | 1 | 2.00 |", "| 1 | cut | tcp |", "| 1 conflict |"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	a.Stale, a.Faults = 1, []string{"stale: a View"}
	if err := tables(&out, []piece{*a}); err == nil || !strings.Contains(err.Error(), "stale: a View") {
		t.Errorf("a fault: %v", err)
	}
	a.Commit = "d"
	if _, err := readAll([]string{write(t, "a", a), write(t, "b", b)}); err == nil {
		t.Error("reports of two commits: no error")
	}
	if _, err := readAll(nil); err == nil {
		t.Error("no report: no error")
	}
}
