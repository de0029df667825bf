package main

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const report = `{"runs": [
	{"engine": "rolex", "clients": 64, "repetition": 1, "throughput_ops": 30, "kinds": {"READ": {"p50_us": 4, "rounds": 1}}},
	{"engine": "xstore", "clients": 64, "repetition": 1, "throughput_ops": 20, "kinds": {"READ": {"p50_us": 8, "rounds": 2}}},
	{"engine": "xstore", "clients": 64, "repetition": 2, "throughput_ops": 10, "kinds": {}},
	{"engine": "rolex", "clients": 64, "repetition": 2, "throughput_ops": 40, "kinds": {}}
], "ratios": []}`

func TestReports(t *testing.T) {
	v, err := compared([]byte(report))
	if err != nil {
		t.Fatal(err)
	}
	r := rate("rolex", "xstore", "1.3")
	if got, err := v.of(&r); err != nil || !slices.Equal(got, []float64{1.5, 4}) {
		t.Errorf("%v, %v", got, err)
	}
	r = latency("READ", "rolex", "xstore", 64, "")
	if got, err := v.of(&r); err != nil || !slices.Equal(got, []float64{0.5}) {
		t.Errorf("%v, %v", got, err)
	}
	r = rate("rolex", "hash", "")
	if _, err := v.of(&r); err == nil {
		t.Error("a ratio to what did not run")
	}
	if _, err := compared([]byte(`{"error": "lost"}`)); err == nil || !strings.Contains(err.Error(), "lost") {
		t.Errorf("a run that ended early: %v", err)
	}
	v, err = transacted([]byte(`{"runs": [{"design": "drtmx", "throughput_tps": 4}, {"design": "drtmh", "throughput_tps": 2}]}`))
	if err != nil || v["drtmx tps"][0] != 4 {
		t.Errorf("%v, %v", v, err)
	}
	v, err = benchmarked([]byte("BenchmarkEngines/xstore/get=server-2   100   12.5 ns/op   2.00 rounds/op\nBenchmarkExpansion-2   20   9 ns/op\n"))
	if err != nil || v["xstore/get=server ns/op"][0] != 12.5 || v["Expansion ns/op"][0] != 9 {
		t.Errorf("%v, %v", v, err)
	}
}

// TestApart: how far a measured ratio is from a paper's.
func TestApart(t *testing.T) {
	for _, c := range []struct {
		here, paper string
		want        float64 // 0: cannot be said
	}{
		{"2.60 (2.00 to 3.00)", "1.3", 2},
		{"0.65 (0.60 to 0.70)", "1.3", 2},
		{"1.10 (1.00 to 1.20)", "1.04 to 1.23", 1},
		{"2.46 (2.00 to 3.00)", "1.04 to 1.23", 2},
		{"0.50 (0.50 to 0.50)", "≤ 1.8", 1},
		{"3.60 (3.60 to 3.60)", "≤ 1.8", 2},
		{"0.50 (0.50 to 0.50)", "above 1", 0},
		{"not run", "1.3", 0},
		{"failed: 3 of 4", "1.3", 0},
		{"2.00 (1.00 to 3.00)", "", 0},
	} {
		if got, ok := apart(c.here, c.paper); ok != (c.want > 0) || math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%q beside %q: %v, %v, want %v", c.here, c.paper, got, ok, c.want)
		}
	}
}

// TestManifest: each figure has a counterpart or the reason why not, each ratio has a name of its own,
// and each compares engines that its command runs.
func TestManifest(t *testing.T) {
	names, titles := map[string]bool{}, map[string]bool{}
	for i := range manifest {
		f := &manifest[i]
		if names[f.paper+f.name] || f.says == "" || (len(f.runs) == 0) == (f.missing == "") {
			t.Errorf("%s %s: twice, or without what it says, or with no runs and no reason", f.paper, f.name)
		}
		names[f.paper+f.name] = true
		for j := range f.runs {
			r := &f.runs[j]
			line := strings.Join(r.args, " ")
			for k := range r.ratios {
				x := &r.ratios[k]
				if tt := title(f, r, x.name); titles[tt] || strings.ContainsAny(x.paper, "|") {
					t.Errorf("%s is twice, or breaks the table", tt)
				} else {
					titles[tt] = true
				}
				for _, side := range []string{x.num, x.den} {
					engine, _, ok := strings.Cut(side, "@")
					if ok && !slices.Contains(strings.Split(after(r.args, "--engines"), ","), engine) {
						t.Errorf("%s: %s is not run by %s", f.name, engine, line)
					}
				}
			}
			if file := after(r.args, "-P"); file != "" {
				if _, err := os.Stat(filepath.Join("../..", file)); err != nil {
					t.Error(err)
				}
			}
			if quick := strings.Join(r.command(true), " "); r.modelled() && !strings.Contains(quick, "--repeat 1 ") {
				t.Errorf("quick: %s", quick)
			}
		}
	}
}

func after(args []string, flag string) string {
	if i := slices.Index(args, flag); i >= 0 {
		return args[i+1]
	}
	return ""
}

func TestOverride(t *testing.T) {
	got := override([]string{"x", "-p", "a=1", "-p", "b=2", "--n", "3"}, []string{"-p", "b=5", "--n", "4", "-p", "c=6"})
	if want := []string{"x", "-p", "a=1", "-p", "b=5", "--n", "4", "-p", "c=6"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestPageKeepsRows: the page is read back as it was written.
func TestPageKeepsRows(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("results", 0o755); err != nil {
		t.Fatal(err)
	}
	p := &page{}
	if err := p.load(); err != nil {
		t.Fatal(err)
	}
	f := &manifest[len(manifest)-3]
	for i := range manifest {
		if manifest[i].x != "" {
			f = &manifest[i]
			break
		}
	}
	for i := range f.runs {
		p.took(f, &f.runs[i], measured{Commit: "abc", Date: "2026-01-02", Ratios: map[string][]float64{f.runs[i].ratios[0].name: {float64(i + 1), 3}}})
	}
	if err := p.write(); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(chartsFile); err != nil || !strings.Contains(string(b), "<svg") {
		t.Errorf("no curves: %v", err)
	}
	again := &page{}
	if err := again.load(); err != nil {
		t.Fatal(err)
	}
	for i := range f.runs {
		name := title(f, &f.runs[i], f.runs[i].ratios[0].name)
		if again.rows[name] != p.rows[name] || again.rows[name].when != "abc, 2026-01-02" {
			t.Errorf("%s: %+v, and was %+v", name, again.rows[name], p.rows[name])
		}
	}
}
