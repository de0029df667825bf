package main

import (
	"fmt"
	"slices"
	"strings"
)

// aim is a throughput ratio that drtmx should reach.
type aim struct {
	text      string
	base      string // ours or oursHash
	kind      string
	workloads string // one letter each, or full
	threads   int    // 0: any
	other     string
	least     float64
}

var aimsHeld = []aim{
	{"YCSB A, B, C, D, F at 8 threads ÷ Redis", ours, "ycsb", "abcdf", 8, "redis", 5},
	{"YCSB A to F at 8 threads ÷ badger", ours, "ycsb", "abcdef", 8, "badger", 1},
	{"YCSB A to F at 1 thread ÷ badger", ours, "ycsb", "abcdef", 1, "badger", 1},
	{"YCSB A, B, C, D, F at 8 threads with a hash index ÷ Redis", oursHash, "ycsb", "abcdf", 8, "redis", 5},
	{"YCSB A, B, C, D, F at 8 threads with a hash index ÷ badger", oursHash, "ycsb", "abcdf", 8, "badger", 1},
	{"TPC-C, all transactions ÷ PostgreSQL, async", ours, "tpcc", "", 0, "postgres", 20},
	{"TPC-C, all transactions ÷ PostgreSQL, sync", ours, "tpcc", "", 0, "postgres-sync", 20},
}

// aims compares the measured ratios with the aims.
func (p *page) aims() {
	p.printf("## Aims\n\n")
	p.head("throughput, drtmx ÷ the other", "aim", "measured", "")
	for _, a := range aimsHeld {
		names, values, verdict := p.judge(a)
		if len(names) == 0 {
			continue
		}
		var parts []string
		for i, n := range names {
			parts = append(parts, strings.TrimSpace(n+" "+values[i]))
		}
		p.row(a.text, fmt.Sprintf("≥ %g", a.least), strings.Join(parts, ", "), verdict)
	}
	p.printf("\n")
}

// judge returns the measured ratios of an aim, and whether the medians reach
// it.
func (p *page) judge(a aim) (names, values []string, verdict string) {
	verdict = "reached"
	var missed []string
	complete := true
	places := slices.Clone(p.cells.places)
	slices.SortStableFunc(places, func(a, b key) int { return strings.Compare(a.workload, b.workload) })
	for _, place := range places {
		if place.kind != a.kind || a.threads != 0 && place.threads != a.threads ||
			a.workloads != "" && !strings.Contains(a.workloads, place.workload) || p.cells.at(place, a.base) == nil {
			continue
		}
		name := ""
		if place.kind == "ycsb" {
			name = strings.ToUpper(place.workload)
		}
		names = append(names, name)
		r, ok := ratio(p.cells.at(place, a.base), p.cells.at(place, a.other), throughput)
		if !ok {
			complete = false
			values = append(values, "failed")
			continue
		}
		values = append(values, short(r.median))
		if r.median < a.least {
			missed = append(missed, name)
		}
	}
	switch {
	case len(missed) > 0:
		verdict = strings.TrimSpace("**missed** " + strings.Join(missed, ", "))
	case !complete:
		verdict = "not measured in full"
	}
	return names, values, verdict
}
