package block

import "testing"

// TestClasses: classes grow, each is the smallest that holds what it is chosen
// for, and little of a block goes to waste.
func TestClasses(t *testing.T) {
	last := 0
	for c := Class(1); c <= MaxClass; c++ {
		words := c.Words()
		if words <= last || words%lineWords != 0 {
			t.Fatalf("class %d has %d words after %d", c, words, last)
		}
		if got, next := ClassFor(words), ClassFor(words+1); got != c || c < MaxClass && next != c+1 || c == MaxClass && next != 0 {
			t.Fatalf("class %d of %d words: ClassFor says %d, and %d for one more", c, words, got, next)
		}
		if got := ClassFor(last + 1); got != c {
			t.Fatalf("%d words: class %d, want %d", last+1, got, c)
		}
		if c > linearLines && 5*last < 4*words {
			t.Errorf("class %d has %d words, the one before %d: more than a fifth is wasted", c, words, last)
		}
		last = words
	}
	for _, words := range []int{0, -1, -1 << 63, 1<<63 - 1, last + 1} {
		if c := ClassFor(words); c != 0 {
			t.Errorf("%d words have class %d", words, c)
		}
	}
	if Class(0).Words() != 0 || Class(MaxClass+1).Words() != 0 || Class(255).Words() != 0 {
		t.Error("a class that does not exist has words")
	}
}

// TestCreateOf: a block filled in one pass is as one that was filled word by word.
func TestCreateOf(t *testing.T) {
	for _, checksums := range []bool{false, true} {
		a := newArena(t, ArenaOptions{Checksums: checksums, Tick: 1})
		addr, err := a.NewSlab(128).Alloc()
		if err != nil {
			t.Fatal(err)
		}
		body := make([]uint64, 14)
		for i := range body {
			body[i] = uint64(i*i) * 0x9e3779b97f4a7c15
		}
		e := a.CreateOf(addr, body)
		if h := Header(a.Span(addr, 1).Load(0)); !h.Locked() {
			t.Fatalf("header %v before Commit", h)
		}
		e.Set(5, 77)
		e.Commit(Present(9))
		got, want := make([]uint64, 16), make([]uint64, 16)
		a.Span(addr, 16).CopyOut(got)
		e = a.Create(addr, 16)
		e.Write(BodyWord, body)
		e.Set(5, 77)
		e.Commit(Present(9))
		a.Span(addr, 16).CopyOut(want)
		if [16]uint64(got) != [16]uint64(want) {
			t.Errorf("checksums %v: %x, want %x", checksums, got, want)
		}
	}
}

// TestAllocNear: free blocks of larger classes serve before new memory is taken,
// if they are less than twice as large, and keep their class.
func TestAllocNear(t *testing.T) {
	a := newArena(t, ArenaOptions{Tick: 1})
	v := a.NewVaried(1000)
	var large []uint64
	for range 100 {
		addr, c, err := v.AllocNear(5)
		if err != nil || c != 5 {
			t.Fatalf("class %d at %#x, %v", c, addr, err)
		}
		large = append(large, addr)
	}
	for _, addr := range large {
		v.Free(addr, 5)
	}
	used := a.Used()
	for i := range 100 {
		addr, c, err := v.AllocNear(3)
		if err != nil || c != 5 {
			t.Fatalf("block %d for class 3: class %d at %#x, %v", i, c, addr, err)
		}
		v.Free(addr, c)
	}
	if now := a.Used(); now != used {
		t.Errorf("%d bytes taken, %d before", now, used)
	}
	if _, c, err := v.AllocNear(2); err != nil || c != 2 {
		t.Errorf("a block of class %d for class 2, %v: more than twice as large", c, err)
	}
}
