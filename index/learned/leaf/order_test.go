package leaf

import (
	"slices"
	"testing"

	"drtmx/internal/mem"

	"pgregory.net/rapid"
)

// drawLeaf makes a leaf with some of its slots in use, and returns these in the order
// of their keys. Digests of string keys may be equal.
func drawLeaf(rt *rapid.T, l *Layout) (words []uint64, order []byte) {
	words = make([]uint64, l.LeafWords)
	count := rapid.IntRange(0, l.Slots).Draw(rt, "count")
	keys := uint64(2 * l.Slots)
	used := map[uint64]bool{}
	for i := range l.Slots {
		words[l.HeadsAt+i] = l.FreeHead
		k := rapid.Uint64Range(0, keys).Draw(rt, "key")
		words[l.KeysAt+i] = k
		if i < count && (l.Kind == Strings || !used[k]) && rapid.IntRange(0, 3).Draw(rt, "used") > 0 {
			used[k] = true
			words[l.HeadsAt+i] = uint64(1 + i)
			order = append(order, byte(i))
		}
	}
	slices.SortStableFunc(order, func(a, b byte) int { return int(words[l.KeysAt+int(a)]) - int(words[l.KeysAt+int(b)]) })
	copy(mem.Bytes(words[l.OrderAt:l.OrderAt+l.OrderWords]), order)
	words[MetaWord] = l.Pack(Meta{Last: true, Newest: NoNewest, Live: len(order), Count: count})
	return words, order
}

// TestOrderIsChecked: whatever the words of a leaf are, its order is rejected, or names
// every slot in use once, with keys that rise.
func TestOrderIsChecked(t *testing.T) {
	accepted, rejected := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		kind := Kind(rapid.IntRange(0, int(Frozen)-1).Draw(rt, "kind"))
		l, err := NewLayout(7, kind, 1, rapid.IntRange(MinSlots, 40).Draw(rt, "slots"))
		if err != nil {
			rt.Fatal(err)
		}
		words, want := drawLeaf(rt, &l)
		v, ok := l.View(words)
		if !ok {
			rt.Fatal("not a leaf")
		}
		if got, ok := v.Order(); !ok || !slices.Equal(got, want) {
			rt.Fatalf("order %v, %v, want %v", got, ok, want)
		}
		bytes := mem.Bytes(words[l.OrderAt : l.OrderAt+l.OrderWords])
		for range rapid.IntRange(1, 3).Draw(rt, "changes") {
			at, slot := rapid.IntRange(0, l.Slots-1).Draw(rt, "at"), rapid.IntRange(0, l.Slots-1).Draw(rt, "slot")
			switch rapid.IntRange(0, 5).Draw(rt, "change") {
			case 0:
				bytes[at] = byte(slot)
			case 1:
				bytes[at] = rapid.Byte().Draw(rt, "byte")
			case 2:
				bytes[at], bytes[slot] = bytes[slot], bytes[at]
			case 3:
				m := Unpack(words[MetaWord])
				m.Live = rapid.IntRange(0, 255).Draw(rt, "live")
				words[MetaWord] = l.Pack(m)
			case 4:
				words[l.KeysAt+slot] = words[l.KeysAt+at]
			case 5:
				words[l.HeadsAt+slot] = words[l.HeadsAt+at]
			}
		}
		v, _ = l.View(words)
		got, ok := v.Order()
		if !ok {
			rejected++
			return
		}
		accepted++
		seen, used := map[byte]bool{}, 0
		for i := range v.Count() {
			if v.InUse(i) {
				used++
			}
		}
		for i, b := range got {
			if int(b) >= v.Count() || !v.InUse(int(b)) || seen[b] {
				rt.Fatalf("order %v names slot %d, which is free, none or named before", got, b)
			}
			seen[b] = true
			if i > 0 && (v.Key(int(got[i-1])) > v.Key(int(b)) || kind != Strings && v.Key(int(got[i-1])) == v.Key(int(b))) {
				rt.Fatalf("order %v: the key of slot %d does not rise", got, b)
			}
		}
		if len(got) != used {
			rt.Fatalf("order %v of %d slots in use", got, used)
		}
	})
	if accepted == 0 || rejected == 0 {
		t.Errorf("%d accepted, %d rejected", accepted, rejected)
	}
}

// TestLookupsHaveNoOrder: the part of a leaf that lookups READ has no order unless all
// of it is there.
func TestLookupsHaveNoOrder(t *testing.T) {
	for kind := range Frozen {
		for slots := MinSlots; slots <= 64; slots++ {
			l, err := NewLayout(7, kind, 1, slots)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range []int{l.LookupWords, l.PresentWords, l.LeafWords} {
				words := make([]uint64, n)
				words[MetaWord] = l.Pack(Meta{Last: true, Newest: NoNewest})
				v, ok := l.View(words)
				if !ok {
					t.Fatalf("%d slots: a copy of %d words is no leaf", slots, n)
				}
				if _, ok := v.Order(); ok != (n >= l.OrderAt+l.OrderWords) {
					t.Errorf("kind %d, %d slots: a copy of %d words has an order: %v", kind, slots, n, ok)
				}
			}
		}
	}
}
