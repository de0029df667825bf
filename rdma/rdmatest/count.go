package rdmatest

import (
	"errors"
	"testing"

	"drtmx/rdma"
)

var countCases = []Case{
	{"CountersOfAKnownScript", caseCounters},
	{"CountersWhileInUse", caseCountersRace},
	{"NoAllocationPerBatch", caseAllocsBatch},
	{"NoAllocationPerCall", caseAllocsCall},
}

func caseCounters(r *rig) {
	e := r.listen(rdma.ListenOptions{})
	m := r.region(2)
	k := r.register(e, m, rdma.AccessRead|r.f.Grants)
	r.check(e.Serve(func(q *rdma.Request) { _ = q.Reply(make([]byte, 3*len(q.Body))) }))
	var sum rdma.Counters
	for range 2 {
		c := r.dial(e)
		if n := c.Counters(); n != (rdma.Counters{}) {
			r.Fatalf("a new connection has counted %+v", n)
		}
		var want rdma.Counters
		step := func(what string, d rdma.Counters) {
			r.Helper()
			want = want.Add(d)
			if got := c.Counters(); got != want {
				r.Fatalf("after %s: counters %+v\nwant %+v", what, got, want)
			}
		}
		var b rdma.Batch
		b.Read(k, 64, make([]uint64, 8))
		r.do(c, &b)
		step("a READ of 64 bytes", rdma.Counters{Rounds: 1, Reads: 1, ReadBytes: 64})
		for i := range uint64(15) {
			b.Read(k, i*8, make([]uint64, 1))
		}
		r.do(c, &b)
		step("a batch of 16 READs", rdma.Counters{Rounds: 1, Reads: 16, ReadBytes: 64 + 15*8})
		b.Read(k, m.Size(), make([]uint64, 100))
		if err := rdma.Do(r.ctx, c, &b); !errors.Is(err, rdma.ErrAccess) {
			r.Fatal(err)
		}
		step("one with a bad READ", rdma.Counters{Rounds: 1, Reads: 17, ReadBytes: 64 + 15*8, Faults: 1, Denied: 1})
		_, err := rdma.Call(r.ctx, c, make([]byte, 10), nil)
		r.check(err)
		step("a call", rdma.Counters{RPCs: 1, RPCBytes: 10 + 30})
		_, err = rdma.Call(r.ctx, c, nil, nil)
		r.check(err)
		step("an empty call", rdma.Counters{RPCs: 1})
		if err := c.StartCall(r.ctx, make([]byte, rdma.MaxMessageBytes+1)); err == nil {
			r.Fatal("a call above the bound was started")
		}
		step("a refused call", rdma.Counters{})
		b.Reset()
		b.Write(k, 1024, make([]uint64, 4))
		d := rdma.Counters{Rounds: 1, Writes: 1, WriteBytes: 32}
		if r.f.Grants&rdma.AccessWrite == 0 {
			d.WriteBytes, d.Faults = 0, 1
		}
		_ = rdma.Do(r.ctx, c, &b)
		d.Denied = denied(&b)
		step("a WRITE of 32 bytes", d)
		b.Reset()
		b.CAS(k, 2048, 0, 1, make([]uint64, 1))
		b.FAA(k, 2048, 1, make([]uint64, 1))
		d = rdma.Counters{Rounds: 1, Atomics: 2}
		if r.f.Grants&rdma.AccessAtomic == 0 {
			d.Faults = 2
		}
		_ = rdma.Do(r.ctx, c, &b)
		d.Denied = denied(&b)
		step("a CAS and a FAA", d)
		r.check(c.Close())
		step("Close", rdma.Counters{})
		sum = sum.Add(want)
	}
	r.checkServerCounters(e, sum)
}

// denied is the number of requests that a grant forbade: a provider without the
// verb does not support it instead.
func denied(b *rdma.Batch) (n uint64) {
	for i := range b.WRs {
		if b.WRs[i].Status == rdma.StatusAccess {
			n++
		}
	}
	return n
}

// checkServerCounters expects the RPCs of sum, and its verbs, or those that write, or none at
// all.
func (r *rig) checkServerCounters(e rdma.Endpoint, sum rdma.Counters) {
	r.Helper()
	calls := rdma.Counters{RPCs: sum.RPCs, RPCBytes: sum.RPCBytes}
	var got rdma.Counters
	r.eventually("the endpoint counts what its connections did", func() bool {
		got = e.Counters()
		return got.RPCs == sum.RPCs && got.RPCBytes == sum.RPCBytes
	})
	// Of the faults, too, those of READs may not be counted.
	written := rdma.Counters{Writes: sum.Writes, Atomics: sum.Atomics, WriteBytes: sum.WriteBytes, Faults: got.Faults, Denied: got.Denied, Lost: got.Lost}
	written = written.Add(calls)
	if got != sum && got != calls && (got != written || got.Faults > sum.Faults || got.Denied > sum.Denied) {
		r.Errorf("the endpoint counts %+v\nwant %+v\nor %+v\nor %+v", got, sum, written, calls)
	}
}

func caseCountersRace(r *rig) {
	e, _, k := r.server()
	c := r.dial(e)
	var last rdma.Counters
	stop := r.background(r.rng.Split("counters"), func() {
		n := c.Counters()
		if n.Reads < last.Reads || n.Rounds < last.Rounds || n.RPCs < last.RPCs {
			r.Errorf("counters fell from %+v to %+v", last, n)
		}
		last = n
		e.Counters()
	})
	var b rdma.Batch
	b.Read(k, 64, make([]uint64, 8))
	for range 300 {
		r.do(c, &b)
		_, err := rdma.Call(r.ctx, c, []byte("x"), nil)
		r.check(err)
	}
	stop()
	if n := c.Counters(); n.Rounds != 300 || n.RPCs != 300 || n.RPCBytes != 600 {
		r.Errorf("counters after 300 rounds and calls: %+v", n)
	}
}

func (r *rig) noAllocs(what string, f func() error) {
	r.Helper()
	if RaceEnabled {
		r.Skip("the race detector allocates; run without it to check")
	}
	var failed error
	run := func() {
		if err := f(); err != nil {
			failed = err
		}
	}
	for range 100 { // buffers grow once
		run()
	}
	n := testing.AllocsPerRun(200, run)
	r.check(failed)
	if n > r.f.Allocs {
		r.Errorf("%s allocates %v times in steady state, want at most %v", what, n, r.f.Allocs)
	}
}

func caseAllocsBatch(r *rig) {
	e, _, k := r.server()
	c := r.dial(e)
	var b rdma.Batch
	buf := make([]uint64, 16*8)
	r.noAllocs("a batch of 16 READs", func() error {
		b.Reset()
		for i := range 16 {
			b.Read(k, uint64(i)*64, buf[i*8:i*8+8])
		}
		return rdma.Do(r.ctx, c, &b)
	})
}

func caseAllocsCall(r *rig) {
	e, _, _ := r.server()
	c := r.dial(e)
	req := make([]byte, 200)
	resp := make([]byte, 0, 200)
	r.noAllocs("a call of 200 bytes", func() error {
		var err error
		resp, err = rdma.Call(r.ctx, c, req, resp)
		return err
	})
}
