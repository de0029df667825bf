package sim

import (
	"fmt"
	"slices"
)

// A case has parts: kinds of faults, disturbances, clients. What a seed draws does
// not depend on which of them are left out, so a case that fails is made smaller by
// leaving out one part after the other.

// parts are the parts of a world's case. Guarded by World.mu.
type parts struct {
	without []string
	names   []string       // of those that were asked for, in this order
	numbers map[string]int // of those that recur
}

// Part notes a part of the case, and reports whether it is to happen.
func (w *World) Part(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.parts.add(name)
}

func (p *parts) add(name string) bool {
	if slices.Contains(p.without, name) {
		return false
	}
	if !slices.Contains(p.names, name) {
		p.names = append(p.names, name)
	}
	return true
}

// Next is Part for a part that recurs: its name gets a number.
func (w *World) Next(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.parts.numbers == nil {
		w.parts.numbers = map[string]int{}
	}
	w.parts.numbers[name]++
	return w.parts.add(fmt.Sprintf("%s-%d", name, w.parts.numbers[name]))
}

// Parts returns the parts of the case that were asked for so far and were not left out.
func (w *World) Parts() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.parts.names)
}

// leaveOut removes from the delays the parts that are left out.
func (s *swarm) leaveOut(w *World) {
	for _, p := range []struct {
		name string
		some bool
		none func()
	}{
		{"slow events", s.slow > 0, func() { s.slow = 0 }},
		{"late READs", s.late > 0, func() { s.late = 0 }},
		{"pauses in memory", s.pauses > 0, func() { s.pauses = 0 }},
		{"goroutines held up", s.stalls > 0, func() { s.stalls = 0 }},
		{"pauses at locks", s.locks > 0, func() { s.locks = 0 }},
		{"clocks ahead", s.skew > 0, func() { s.skew = 0 }},
		{"rates of clocks", w.clocks.rates, func() { w.clocks.rates = false }},
	} {
		if p.some && !w.Part(p.name) {
			p.none()
		}
	}
}
