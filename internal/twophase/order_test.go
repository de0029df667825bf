package twophase

import (
	"reflect"
	"testing"

	"drtmx/internal/placement"
)

// TestSameInputsSameOutputs: a machine's messages do not depend on the order in
// which Go walks through maps, so that a recorded run can be repeated.
func TestSameInputsSameOutputs(t *testing.T) {
	run := func() (all []Message, effects []Effect, oldest []ID) {
		m := New(Party{1, 1}, Limits{AskAfter: 1, RepeatEvery: 1})
		var out Out
		take := func() {
			all, effects = append(all, out.Messages...), append(effects, out.Effects...)
			out.Reset()
		}
		for c := placement.Partition(2); c < 8; c++ {
			from := Party{c, 1}
			for seq := uint64(1); seq < 6; seq++ {
				id := ID{from, seq}
				parties := []Party{from, {1, 1}, {9, 1}}
				m.Receive(&Message{Kind: Prepare, From: from, To: m.self, ID: id, Parties: parties}, &out)
				m.Locked(id, Yes, 1, &out)
			}
			if _, err := m.Begin([]Party{m.self, from, {9, 1}}, Party{}, &out); err != nil {
				t.Fatal(err)
			}
			take()
		}
		for range 4 {
			m.Tick(&out)
			take()
			id, _ := m.Oldest()
			oldest = append(oldest, id)
		}
		m.Gone(Party{9, 1}, &out)
		m.Gone(Party{3, 1}, &out)
		take()
		for range 4 {
			m.Tick(&out)
			take()
		}
		return all, effects, oldest
	}
	messages, effects, oldest := run()
	if len(messages) < 100 {
		t.Fatalf("%d messages, want a run worth repeating", len(messages))
	}
	for range 20 {
		if again, e, o := run(); !reflect.DeepEqual(again, messages) || !reflect.DeepEqual(e, effects) || !reflect.DeepEqual(o, oldest) {
			t.Fatal("the same inputs had other outputs")
		}
	}
}
