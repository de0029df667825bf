package server

import (
	"fmt"
	"slices"
	"testing"

	"drtmx/index"
	"drtmx/internal/exec"
	"drtmx/internal/wire"
)

// TestHandoverInEveryOrder explores all sequences of events, those that do not
// belong where they come included. The home decides as the other said and not
// before, once; the client hears the same; and only a commit is acknowledged.
func TestHandoverInEveryOrder(t *testing.T) {
	const home, other = 3, 5
	no, exists := conflict(exec.CauseRow), verdict{code: wire.Exists}
	events := []event{
		{kind: evStart},
		{kind: evVote, server: home},
		{kind: evVote, server: home, v: no},
		{kind: evVote, server: home, v: exists},
		{kind: evVote, server: other},
		{kind: evVote, server: other, v: no},
		{kind: evLost, server: other, v: verdict{code: wire.Unavailable}},
		{kind: evLost, server: home},
		{kind: evAck, server: other},
		{kind: evUnheard, server: other},
	}
	ends, steps := 0, 0
	var explore func(h handover, out []effect, told []verdict, depth int)
	explore = func(h handover, out []effect, told []verdict, depth int) {
		if err := checkHandover(&h, out, told, home, other); err != nil {
			t.Fatalf("%v\neffects %+v", err, out)
		}
		if h.state == handDone {
			ends++
		}
		if depth == 0 {
			return
		}
		for _, e := range events {
			next, heard := h, told
			if e.kind == evVote && e.server == other && (h.state == handHanded || h.state == handAsking) {
				heard = append(slices.Clone(told), e.v)
			}
			effects := next.step(e, slices.Clone(out))
			steps++
			explore(next, effects, heard, depth-1)
		}
	}
	explore(handover{home: home, other: other}, nil, nil, 6)
	if ends == 0 {
		t.Error("no path came to an end")
	}
	t.Logf("%d steps, %d ends", steps, ends)
}

func checkHandover(h *handover, out []effect, told []verdict, home, other int) error {
	count := map[effectKind]int{}
	for i, e := range out {
		if count[e.kind]++; count[e.kind] > 1 {
			return fmt.Errorf("effect %d happens twice", e.kind)
		}
		switch e.kind {
		case doHandOver, doAsk, doAcknowledge:
			if e.server != other {
				return fmt.Errorf("effect %d at server %d", e.kind, e.server)
			}
		case doPrepare:
			if i != 0 || e.server != home {
				return fmt.Errorf("prepare comes as effect %d, at server %d", i, e.server)
			}
		case doDecide:
			if len(told) == 0 || e.server != home || e.commit != told[0].ok() {
				return fmt.Errorf("the home decides commit=%v, the other said %v", e.commit, told)
			}
		case doReply:
			if count[doHandOver] == 1 && (count[doDecide] == 0 || e.v != told[0]) {
				return fmt.Errorf("the client is told %v, the other said %v", e.v, told)
			}
			if count[doHandOver] == 0 && e.v.ok() {
				return fmt.Errorf("the client is told of a commit that was not handed over")
			}
		default:
			return fmt.Errorf("effect %d does not belong here", e.kind)
		}
	}
	if commit := len(told) > 0 && told[0].ok(); (count[doAcknowledge] == 1) != commit || (count[doReply] == 1) != (h.state == handDone) {
		return fmt.Errorf("committed %v: %d acknowledgements, %d replies", commit, count[doAcknowledge], count[doReply])
	}
	return nil
}

// handed is a transaction of one write, to be handed over.
func handed(seq uint64, w wire.Write) *wire.Commit {
	return &wire.Commit{ID: wire.ID{Client: 99, Seq: seq}, Parts: []wire.Part{{Writes: []wire.Write{w}}}}
}

// TestLateHandOverIsRefused: what was answered to be aborted, or committed, is
// not carried out afterwards, and what was carried out is not forgotten until
// that is acknowledged.
func TestLateHandOverIsRefused(t *testing.T) {
	s, p, entry := newRig(t)
	putEntries(t, s, entry, 10)
	update := writeOf(entry, wire.Update, 10)
	header := func() index.Proof { return proofsOf(t, p, entry, 10, index.Found)[0] }

	c := handed(1, update)
	if code := s.resolve(c.ID); code != wire.Aborted {
		t.Fatalf("a transaction never seen is answered %d", code)
	}
	before := header()
	if v := s.commitHanded(c, nil); v.ok() || header() != before {
		t.Errorf("a transaction that was called aborted is committed when it comes after all: %+v", v)
	}

	c = handed(2, update)
	if v := s.commitHanded(c, nil); !v.ok() || header() == before {
		t.Fatalf("not committed: %+v", v)
	}
	before = header()
	for range 3 * decidedMax / 2 { // more than is remembered of other transactions
		s.doubts.part.remember(wire.ID{Client: 1, Seq: s.coordinated.Add(1)}, false)
	}
	if code := s.resolve(c.ID); code != wire.OK {
		t.Errorf("a commit not yet acknowledged is answered %d", code)
	}
	if v := s.commitHanded(c, nil); v.code != wire.Bad || header() != before {
		t.Errorf("repeated, it is carried out again: %+v", v)
	}
	if v := s.commitHanded(handed(3, update), []wire.ID{c.ID}); !v.ok() {
		t.Error(v)
	}
	if len(s.doubts.handed) != 1 || len(s.doubts.active) != 0 {
		t.Errorf("%d commits remembered and %d under way, want the one that is not acknowledged", len(s.doubts.handed), len(s.doubts.active))
	}

	c = handed(4, writeOf(entry, wire.Insert, 10))
	if v := s.commitHanded(c, nil); v.code != wire.Exists {
		t.Errorf("insert of a row that exists: %+v", v)
	}
	if code := s.resolve(c.ID); code != wire.Aborted || len(s.doubts.handed) != 1 {
		t.Errorf("a refusal is answered %d, and remembered: %d", code, len(s.doubts.handed))
	}
	two := handed(5, update)
	two.Parts = append(two.Parts, wire.Part{Partition: 7})
	if v := s.commitHanded(two, nil); v.code != wire.Bad {
		t.Errorf("shares of several partitions: %+v", v)
	}
}

// TestHandedIsBounded: who never acknowledges is refused in the end.
func TestHandedIsBounded(t *testing.T) {
	s, _, entry := newRig(t)
	putEntries(t, s, entry, 10)
	for i := range uint64(handedMax) {
		s.doubts.handed[wire.ID{Client: 98, Seq: i}] = true
	}
	if v := s.commitHanded(handed(1, writeOf(entry, wire.Update, 10)), nil); v.code != wire.Unavailable {
		t.Errorf("one more: %+v", v)
	}
	if v := s.commitHanded(handed(2, writeOf(entry, wire.Update, 10)), []wire.ID{{Client: 98, Seq: 7}}); !v.ok() {
		t.Errorf("in place of one acknowledged: %+v", v)
	}
}
