//go:build simulated

package server_test

import (
	"time"

	"drtmx/internal/rng"
	"drtmx/internal/wire"
	"drtmx/rdma/inproc"
	"drtmx/tables"
)

// Storms around mechanisms of one engine: kinds of clusters of their own draw from them, and storms do
// not.

// ofBins are storms around what the engine FineStore does with arrays and bins: first bins, divisions
// and merges beside transactions that have read there.
func ofBins() []scenario {
	return []scenario{
		{name: "small arrays of prepared transactions", servers: 2, partitions: 2, loses: true, leaves: true, load: func(l *load, s *rng.Stream) {
			l.bins(s)
			fewRows(l, s)
			l.OpsPerTxn, l.Keys, l.Clients, l.Views, l.Looks = 2+s.Intn(4), 16+s.Intn(24), 8+s.Intn(8), 0, 0
			l.Scans, l.Reads, l.Deletes, l.RollBacks = 0.2+0.2*s.Float64(), 0.1, 0.25, 0
		}, upset: (*upsetting).delayPrepares},
		{name: "write skews in small arrays", servers: 2, partitions: 2, loses: true, leaves: true, load: func(l *load, s *rng.Stream) {
			l.bins(s)
			fewRows(l, s)
			skews(l, s)
			l.Keys, l.Rotate = 32, 1+s.Intn(3)
			l.Clients, l.Views, l.Looks, l.Deletes, l.RollBacks = 8+s.Intn(8), 0, 0, 0.25, 0
		}, upset: (*upsetting).delayPrepares},
		{name: "full bins of prepared transactions", servers: 2, partitions: 2, loses: true, load: func(l *load, s *rng.Stream) {
			newKeys(l, s)
			l.Views, l.Looks, l.RollBacks = 0, 0, 0
			if s.Bool(0.7) {
				skews(l, s)
				l.Keys = 32 * (2 + s.Intn(4))
			}
		}, upset: (*upsetting).delayPrepares},
		{name: "merges beside slow readers", servers: 1, partitions: 2, leaves: true, load: func(l *load, s *rng.Stream) {
			newKeys(l, s)
			l.Deletes, l.Dawdle = 0.2, between(s, 1, 20)
		}},
		{name: "divisions within scans", servers: 1, partitions: 2, faults: func(*rng.Stream) inproc.Faults {
			return inproc.Faults{Pause: 0.3, Defer: 0.2, Reorder: 0.5}
		}, load: func(l *load, s *rng.Stream) {
			newKeys(l, s)
			l.Views, l.Looks, l.Calls, l.Snapshots, l.ScanKeys = 0.4, 0, 0, 0, 64
		}},
	}
}

// skews lets pairs of transactions form write skews, most of them in two partitions: those of keys
// that differ by four are different ones, if the table has a secondary index.
func skews(l *load, s *rng.Stream) {
	l.Bare, l.Skews, l.ScanKeys = false, 0.5+0.4*s.Float64(), 4
}

// newKeys is a load of a table of FineStore with many new keys: they come in any order to where no
// array has keys yet, so bins there become full.
func newKeys(l *load, s *rng.Stream) {
	l.bins(s)
	l.Bare, l.OneTable, l.Room, l.Rotate = true, false, 4, 2
	l.Keys, l.Clients, l.Hows = 128+s.Intn(128), 8+s.Intn(8), l.Hows&^(howSecondary|howLimit)
	l.OpsPerTxn, l.Scans, l.Reads, l.Deletes = 2+s.Intn(5), 0.1+0.2*s.Float64(), 0.2*s.Float64(), 0
}

// twins makes it a load of a hash index with an ordered twin, whose keys come and go.
func (l *load) twins(s *rng.Stream) {
	l.Twin = []tables.Twin{tables.TwinLocal, tables.TwinSync, tables.TwinNext, tables.TwinNext}[s.Intn(4)]
	l.Rebuild = s.Bool(0.5)
	l.Keys += s.Intn(100)
	l.Scans, l.Deletes = max(l.Scans, 0.2*s.Float64()), max(l.Deletes, 0.2*s.Float64())
}

// ofTwins are storms around what keeps a twin as its hash index is.
func ofTwins() []scenario {
	return []scenario{
		{name: "shipments that come late and twice", servers: 2, loses: true, load: func(l *load, s *rng.Stream) {
			comeAndGo(l, s)
			l.Twin, l.Snapshots = tables.TwinNext, 0.2*s.Float64() // of single rows: they do not read such a twin
		}, upset: func(u *upsetting) {
			u.disturb(map[wire.Op]rates{wire.OpShip: {hold: 0.1, late: 0.1, twice: 0.3}, wire.OpPlaces: {hold: 0.3, late: 0.3}})
		}},
		{name: "twins that leave while messages are late", servers: 3, loses: true, load: func(l *load, s *rng.Stream) {
			comeAndGo(l, s)
			l.Twin = []tables.Twin{tables.TwinLocal, tables.TwinSync, tables.TwinNext}[s.Intn(3)]
			l.Rebuild, l.Rest = true, between(s, 0, 20)
		}, upset: func(u *upsetting) {
			u.disturb(map[wire.Op]rates{wire.OpCatalog: {hold: 0.5, late: 0.1, twice: 0.1}, wire.OpShip: {hold: 0.1, late: 0.05, twice: 0.05}, wire.OpPlaces: {hold: 0.3, late: 0.3}, wire.OpPrepare: {hold: 0.1, late: 0.05}, wire.OpHandOver: {hold: 0.1, late: 0.05}})
		}},
	}
}

// comeAndGo is a load of few rows by hash that are deleted and inserted again and again.
func comeAndGo(l *load, s *rng.Stream) {
	l.OneTable, l.Room, l.Rotate = false, 24, 20
	l.Keys, l.Clients, l.OpsPerTxn = 8+s.Intn(24), 4+s.Intn(6), 1+s.Intn(3)
	l.Scans, l.Reads, l.Deletes, l.RollBacks = 0.2, 0.05, 0.35, 0
	l.Views, l.Looks, l.Calls, l.Snapshots = 0.3*s.Float64(), 0.1, 0.1*s.Float64(), 0
}

// disturb lets messages of some kinds be late, lost and repeated.
func (u *upsetting) disturb(which map[wire.Op]rates) {
	u.d.mu.Lock()
	defer u.d.mu.Unlock()
	for op, r := range which {
		u.d.mu.rates[op] = r
	}
	u.d.mu.longest, u.d.mu.share = []time.Duration{5, 50, 500}[u.s.Intn(3)]*time.Millisecond, 0.3
}
