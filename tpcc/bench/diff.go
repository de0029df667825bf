package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// ErrNotReports reports JSON that no run or comparison has written.
var ErrNotReports = errors.New("bench: not a report of drtmx tpcc run or compare")

// ParseReports parses the JSON that runs write: a report, a list of reports, or the
// object of a comparison. The reports have no Record. It fails with ErrNotReports.
func ParseReports(b []byte) ([]*Report, error) {
	var of struct {
		Runs []*Report `json:"runs"`
	}
	var one Report
	var err error
	switch b = bytes.TrimSpace(b); {
	case bytes.HasPrefix(b, []byte("[")):
		err = json.Unmarshal(b, &of.Runs)
	default:
		if err = json.Unmarshal(b, &of); err == nil && of.Runs == nil {
			err = json.Unmarshal(b, &one)
			of.Runs = []*Report{&one}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotReports, err)
	}
	for _, r := range of.Runs {
		if r == nil || r.Workload != "tpcc" || len(r.Types) == 0 {
			return nil, ErrNotReports
		}
	}
	if len(of.Runs) == 0 {
		return nil, fmt.Errorf("%w: no runs", ErrNotReports)
	}
	return of.Runs, nil
}

// Group holds the runs with the same mix, design, cache and number of clients: the
// repetitions in a comparison.
type Group struct {
	Name string
	Runs []*Report
}

// Groups divides runs into groups, in the order of their first runs.
func Groups(runs []*Report) (all []Group) {
	for _, r := range runs {
		name := fmt.Sprintf("%s, cache %s, %d clients, %s", r.Design, r.Cache, r.Clients, r.Mix)
		at := slices.IndexFunc(all, func(g Group) bool { return g.Name == name })
		if at < 0 {
			at, all = len(all), append(all, Group{Name: name})
		}
		all[at].Runs = append(all[at].Runs, r)
	}
	return all
}

// median returns the median of a figure over all runs.
func (g *Group) median(figure func(*Report) float64) float64 {
	var all []float64
	for _, r := range g.Runs {
		all = append(all, figure(r))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// Bounds limit the ratios of new to old figures; 0 means no limit.
type Bounds struct {
	ThroughputMin float64
	LatencyMax    float64 // p50, p95 and p99 of each type
	CPUMax        float64 // CPU time per transaction
	CostMax       float64 // rounds, READs and RPCs of each type
}

// Change is a figure of the old and the new runs.
type Change struct {
	Figure   string  `json:"figure"`
	Type     string  `json:"type,omitempty"` // of transaction
	Old      float64 `json:"old"`
	New      float64 `json:"new"`
	Ratio    float64 `json:"ratio"` // new to old; 1 if both are 0
	Exceeded bool    `json:"exceeded,omitempty"`
	Bound    float64 `json:"bound,omitempty"` // of the ratio
}

// String returns the name of the figure and of the transaction type.
func (c *Change) String() string { return strings.TrimSpace(c.Figure + " " + c.Type) }

// Diff compares two groups of runs, figure by figure. The figures are medians over
// the runs of a group.
type Diff struct {
	Old      string   `json:"old"`
	New      string   `json:"new"`
	Settings []string `json:"settings"` // that differ: "warehouses 4, 8"
	Notes    []string `json:"notes"`    // on runs that did not end well
	Changes  []Change `json:"changes"`
}

// Exceeded lists the figures whose bound is exceeded.
func (d *Diff) Exceeded() (all []Change) {
	for _, c := range d.Changes {
		if c.Exceeded {
			all = append(all, c)
		}
	}
	return all
}

// DiffReports compares the groups of old and new runs that have the same name. If
// there is one group of each, it compares these whatever their names. unpaired names
// the groups without a counterpart.
func DiffReports(before, after []*Report, b Bounds) (diffs []*Diff, unpaired []string) {
	from, to := Groups(before), Groups(after)
	if len(from) == 1 && len(to) == 1 {
		return []*Diff{diff(&from[0], &to[0], b)}, nil
	}
	taken := map[string]bool{}
	for i := range from {
		at := slices.IndexFunc(to, func(g Group) bool { return g.Name == from[i].Name })
		if at < 0 {
			unpaired = append(unpaired, "only old: "+from[i].Name)
			continue
		}
		taken[from[i].Name] = true
		diffs = append(diffs, diff(&from[i], &to[at], b))
	}
	for _, g := range to {
		if !taken[g.Name] {
			unpaired = append(unpaired, "only new: "+g.Name)
		}
	}
	return diffs, unpaired
}

func diff(from, to *Group, b Bounds) *Diff {
	d := &Diff{Old: from.Name, New: to.Name, Settings: differing(from.Runs[0], to.Runs[0]), Notes: append(from.notes("old"), to.notes("new")...)}
	add := func(figure, name string, least bool, bound float64, of func(*Report) float64) {
		c := Change{Figure: figure, Type: name, Old: from.median(of), New: to.median(of), Ratio: 1, Bound: bound}
		if c.Old != c.New {
			c.Ratio = math.Min(c.New/c.Old, math.MaxFloat64) // JSON has no infinity
		}
		c.Exceeded = bound > 0 && (least && c.Ratio < bound || !least && c.Ratio > bound)
		d.Changes = append(d.Changes, c)
	}
	add("per second", "", true, b.ThroughputMin, func(r *Report) float64 { return r.Throughput })
	types := from.Runs[0].Order()
	for _, name := range types {
		if _, both := to.Runs[0].Types[name]; !both {
			continue
		}
		for _, f := range []struct {
			figure string
			of     func(t TypeReport) float64
		}{
			{"p50 µs", func(t TypeReport) float64 { return t.P50 }},
			{"p95 µs", func(t TypeReport) float64 { return t.P95 }},
			{"p99 µs", func(t TypeReport) float64 { return t.P99 }},
		} {
			add(f.figure, name, false, b.LatencyMax, func(r *Report) float64 { return f.of(r.Types[name]) })
		}
		add("rounds", name, false, b.CostMax, func(r *Report) float64 { return r.Rounds[name] })
		add("READs", name, false, b.CostMax, func(r *Report) float64 { return r.Reads[name] })
		add("RPCs", name, false, b.CostMax, func(r *Report) float64 { return r.RPCs[name] })
		add("retries", name, false, 0, func(r *Report) float64 { return r.Retries[name] })
	}
	add("µs CPU of clients", "", false, b.CPUMax, func(r *Report) float64 { return 1e6 * Ratio(r.ClientCPUS, r.Finished()) })
	add("µs CPU of servers", "", false, b.CPUMax, func(r *Report) float64 { return 1e6 * Ratio(r.ServerCPUS, r.Finished()) })
	add("memory, bytes a row", "", false, 0, func(r *Report) float64 { return r.RegionPerRow })
	return d
}

// notes returns a line for each run that failed, was interrupted, ended within its
// warm-up or is inconsistent.
func (g *Group) notes(which string) (all []string) {
	for _, r := range g.Runs {
		switch {
		case r.Error != "":
			all = append(all, which+": the run failed: "+r.Error)
		case r.WarmupOnly:
			all = append(all, which+": the figures are of the warm-up")
		case r.Interrupted:
			all = append(all, which+": the run was interrupted")
		case r.Consistency.Err() != nil:
			all = append(all, which+": "+r.Consistency.Err().Error())
		}
	}
	return all
}

// differing lists the settings of two runs that are not the same.
func differing(a, b *Report) (all []string) {
	for _, s := range []struct {
		name string
		of   func(*Report) any
	}{
		{"design", func(r *Report) any { return r.Design }},
		{"durability", func(r *Report) any { return strings.TrimPrefix(r.Durability, "in-") }}, // older reports say in-memory
		{"cache", func(r *Report) any { return r.Cache }},
		{"models", func(r *Report) any { return r.Models }},
		{"fabric", func(r *Report) any { return r.Fabric }},
		{"warehouses", func(r *Report) any { return r.Warehouses }},
		{"items", func(r *Report) any { return r.Items }},
		{"customers", func(r *Report) any { return r.Customers }},
		{"servers", func(r *Report) any { return r.Servers }},
		{"partitions", func(r *Report) any { return r.Partitions }},
		{"clients", func(r *Report) any { return r.Clients }},
		{"mix", func(r *Report) any { return r.Mix }},
		{"rate", func(r *Report) any { return r.Rate }},
		{"arrivals", func(r *Report) any { return r.Arrivals }},
		{"homes", func(r *Report) any { return r.Homes }},
		{"keying and think times ×", func(r *Report) any { return r.pacing() }},
		{"new-order", func(r *Report) any { return r.NewOrderAt }},
		{"payment", func(r *Report) any { return r.PaymentAt }},
		{"delivery", func(r *Report) any { return r.Delivery.Mode }},
		{"seconds", func(r *Report) any { return math.Round(r.DurationS) }},
		{"seed", func(r *Report) any { return r.Seed }},
		{"version", func(r *Report) any { return r.Version }},
		{"commit", func(r *Report) any { return r.Commit }},
		{"Go", func(r *Report) any { return r.Go }},
		{"machine", func(r *Report) any { return r.Machine }},
		{"processors", func(r *Report) any { return r.CPUs }},
	} {
		if x, y := s.of(a), s.of(b); x != y {
			all = append(all, fmt.Sprintf("%s %s, %s", s.name, settingText(x), settingText(y)))
		}
	}
	return all
}

func settingText(v any) string {
	if v == "" {
		return "none"
	}
	return fmt.Sprint(v)
}

// pacing returns the scale of the terminals' waits, 0 if they do not wait.
func (r *Report) pacing() float64 {
	if !r.KeyingThink {
		return 0
	}
	return r.TimeScale
}
