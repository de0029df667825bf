//go:build simulated

package server_test

import (
	"fmt"
	"reflect"

	"drtmx/internal/twophase"
)

// leaveOut takes those parts out of a case that are left out. What happens again and
// again while a cluster runs is left out where it happens: see World.Next.
func (r *simulation) leaveOut() {
	part := func(name string, some bool, none func()) {
		if some && !r.w.Part(name) {
			none()
		}
	}
	faults := reflect.ValueOf(&r.u.net.Faults).Elem()
	for i := range faults.NumField() {
		f := faults.Field(i)
		part("fabric: "+faults.Type().Field(i).Name, !f.IsZero(), f.SetZero)
	}
	part("cuts", r.cuts, func() { r.cuts = false })
	part("pauses", r.pauses, func() { r.pauses = false })
	part("dials that fail", r.dials, func() { r.dials = false })
	part("small leaves", r.u.slots > 0, func() { r.u.slots = 0 })
	part("small tables", r.u.limits != twophase.Limits{}, func() { r.u.limits = twophase.Limits{} })
	if s := r.storm; s != nil {
		part("upset", s.upset != nil, func() { s.upset = nil })
		part("a paused server", s.pause, func() { s.pause = false })
		part("pollers", r.u.net.Pollers > 1, func() { r.u.net.Pollers = 0 })
	} else {
		part("disturbed messages", r.u.upset != nil, func() { r.u.upset = nil })
	}
	if d := r.d; d != nil {
		part("copies", d.replicas > 1, func() { d.replicas = 1 })
		part("slow disks", d.slow > 0, func() { d.slow = 0 })
		part("disks that fail", r.faults.share > 0, func() { r.faults.share, r.faults.fails = 0, nil })
		part("full disks", r.l.MayBeFull, func() { r.l.MayBeFull = false })
	}
	l := &r.l
	part("patience", l.Patience > 0, func() { l.Patience = 0 })
	if r.job != nil {
		part("long rests", l.Rest > 0, func() { l.Rest = 0 })
		part("small memory", r.u.memory > 0, func() { r.u.memory = 0 })
	} else {
		part("views", l.Views > 0, func() { l.Views = 0 })
		part("looks", l.Looks > 0, func() { l.Looks = 0 })
		part("calls", l.Calls > 0, func() { l.Calls = 0 })
		part("snapshots", l.Snapshots > 0, func() { l.Snapshots = 0 })
		part("scans", l.Scans > 0, func() { l.Scans = 0 })
		part("deletes", l.Deletes > 0, func() { l.Deletes = 0 })
		part("strings", l.Strings, func() { l.Strings = false })
	}
	for n := 2; l.TxnsPerClient > 1 && !r.w.Part(fmt.Sprintf("transactions/%d", n)); n *= 2 {
		l.TxnsPerClient /= 2
	}
}

// present reports whether a client takes part.
func (r *simulation) present(client int) bool { return r.w.Part(fmt.Sprintf("client %d", client)) }
