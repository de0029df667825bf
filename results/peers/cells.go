package main

import (
	"fmt"
	"slices"
)

// key names a cell: all repetitions of one system in one place.
type key struct {
	kind, workload string
	threads        int
	system         string
}

// cell has the measurements of all repetitions, by repetition.
type cell struct {
	runs   map[int]measured
	failed string // the reason, if any repetition failed
}

// ours and oursHash are drtmx with either index; others are compared with them.
const (
	ours     = "drtmx"
	oursHash = "drtmx-hash"
)

type cells struct {
	m map[key]*cell
	// places are the kinds, workloads and thread counts, in order of the runs.
	places []key
}

func collect(index []entry, measure func(entry) measured) *cells {
	c := &cells{m: map[key]*cell{}}
	for _, e := range index {
		k := key{e.kind, e.workload, e.threads, e.system}
		if c.m[k] == nil {
			c.m[k] = &cell{runs: map[int]measured{}}
			if place := (key{e.kind, e.workload, e.threads, ""}); !slices.Contains(c.places, place) {
				c.places = append(c.places, place)
			}
		}
		m := measure(e)
		if m.failed != "" && c.m[k].failed == "" {
			c.m[k].failed = m.failed
		}
		c.m[k].runs[e.rep] = m
	}
	return c
}

// at is the cell of a system, or nil.
func (c *cells) at(place key, system string) *cell {
	place.system = system
	return c.m[place]
}

// base is the system with which others are compared in a place: drtmx with its
// ordered index, or with its hash index where the ordered one has no figures.
func (c *cells) base(place key) string {
	if o, h := c.at(place, ours), c.at(place, oursHash); (o == nil || o.failed != "") && h != nil && h.failed == "" {
		return oursHash
	}
	return ours
}

// spread is the median of some figures, with the least and the greatest.
type spread struct{ median, least, greatest float64 }

func spreadOf(v []float64) (s spread, ok bool) {
	if len(v) == 0 {
		return s, false
	}
	slices.Sort(v)
	s = spread{v[len(v)/2], v[0], v[len(v)-1]}
	if len(v)%2 == 0 {
		s.median = (v[len(v)/2-1] + v[len(v)/2]) / 2
	}
	return s, true
}

func (s spread) String() string {
	if s.least == s.greatest {
		return short(s.median)
	}
	return fmt.Sprintf("%s (%s to %s)", short(s.median), short(s.least), short(s.greatest))
}

// short is a figure with three significant digits.
func short(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.2g", v)
}

// figure picks a figure of a run; false if it has none.
type figure func(measured) (float64, bool)

func throughput(m measured) (float64, bool) { return m.perSecond, m.perSecond > 0 }

func p99(kind string) figure {
	return func(m measured) (float64, bool) {
		v, ok := m.p99Us[kind]
		return v, ok
	}
}

// of is a figure over all repetitions.
func (c *cell) of(f figure) (spread, bool) {
	if c == nil || c.failed != "" {
		return spread{}, false
	}
	var all []float64
	for _, m := range c.runs {
		if v, ok := f(m); ok {
			all = append(all, v)
		}
	}
	return spreadOf(all)
}

// ratio is a figure of one cell divided by another's, repetition by
// repetition: neighbours in time are compared.
func ratio(over, under *cell, f figure) (spread, bool) {
	if over == nil || under == nil || over.failed != "" || under.failed != "" {
		return spread{}, false
	}
	var all []float64
	for rep, m := range over.runs {
		a, okA := f(m)
		b, okB := f(under.runs[rep])
		if okA && okB && b > 0 {
			all = append(all, a/b)
		}
	}
	return spreadOf(all)
}

// operations returns, as text, the number of operations of all repetitions.
func (c *cell) operations() string {
	var n, conflicts int64
	for _, m := range c.runs {
		n += m.operations
		conflicts += m.conflicts
	}
	if conflicts > 0 {
		return fmt.Sprintf("%d; %d more met conflicts", n, conflicts)
	}
	return fmt.Sprint(n)
}
