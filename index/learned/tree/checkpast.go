package tree

import (
	"fmt"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
)

// versions verifies the versions that readers of the past may reach through the word
// older of a row with the CSN. words is the size of its payload.
func (c *checker) versions(key index.Key, csn block.CSN, older block.Older, words int) error {
	t := c.t
	floor := t.a.History().Floor()
	for older != 0 && csn.Tick() > floor {
		s, ok := t.versionOf(older)
		if !ok {
			return fmt.Errorf("key %v: version at %#x", key, older)
		}
		b, err := c.block(older.Addr(), s.Words())
		if err != nil {
			return fmt.Errorf("key %v: %w", key, err)
		}
		if older.IsPatch() {
			first, n := older.Extent(leaf.PatchWord)
			r := pastRow{key: key, row: make([]uint64, words)}
			ok = t.patches(s, &r) && n > 0 && first+n <= words
		} else {
			_, words, ok = t.payload(s, key)
		}
		h := block.Header(b[0])
		switch {
		case !ok:
			return fmt.Errorf("key %v: version %v at %#x is of another key, or no patch of %d words", key, h, older, words)
		case !h.Locked() || h.IsAbsent() || h.CSN() >= csn:
			return fmt.Errorf("key %v: version %v at %#x before %v", key, h, older, block.Present(csn))
		}
		csn, older = h.CSN(), block.Older(b[t.versions.OlderWord])
	}
	return nil
}

// gravesOf compares the graves of a leaf, as readers find them, with the server's
// records.
func (c *checker) gravesOf(f *fences, v *leaf.Leaf) error {
	t := c.t
	g := t.yard.byLeaf[f.addr]
	if g == nil {
		return nil // the word of the leaf may dangle: no reader follows it
	}
	if v.Graves() != g.word {
		return fmt.Errorf("graves at %#x, want %#x", v.Graves(), g.word)
	}
	cur := cursor{t: t, at: t.a.History().Floor()}
	if v.LastDelete().Tick() > cur.at {
		if cur.exhume(v.Graves()) != present {
			return fmt.Errorf("graves at %#x cannot be read", v.Graves())
		}
	}
	want := 0
	for _, b := range g.blocks {
		c.graves[b]++
		if b == g.open && c.graves[b] > 1 || !b.at.Valid() {
			return fmt.Errorf("an open block of graves at %#x, which %d leaves have", b.at, c.graves[b])
		}
		if b.newest.Tick() <= cur.at && b != g.open {
			continue
		}
		block, ok := cur.gravesAt(b.at)
		if !ok || block.IsList() || block.Len() != b.n {
			return fmt.Errorf("%d graves at %#x: cannot be read", b.n, b.at)
		}
		for i := range block.Len() {
			one := block.Grave(i)
			if one.Deleted > b.newest {
				return fmt.Errorf("a grave of %v, newest %v", block.Grave(i), b.newest)
			}
			if one.Deleted.Tick() <= cur.at {
				continue
			}
			want++
			if err := c.grave(one); err != nil {
				return err
			}
		}
	}
	if want != len(cur.graves) && v.LastDelete().Tick() > cur.at {
		return fmt.Errorf("%d graves to be read, want %d", len(cur.graves), want)
	}
	return nil
}

func (c *checker) grave(g leaf.Grave) error {
	key := index.Num(g.Key)
	if c.t.lay.Kind == leaf.Strings {
		s, ok := c.t.versionOf(g.Older)
		if !ok {
			return fmt.Errorf("grave at %#x", g.Older)
		}
		cur := cursor{t: c.t}
		if key, ok = cur.keyIn(s); !ok || leaf.Hash(key.Str) != g.Key {
			return fmt.Errorf("grave of %v has a version of key %v", g, key)
		}
	}
	return c.versions(key, g.Deleted, g.Older, 0)
}

// yard verifies the graveyard, after gravesOf has counted the graves of all leaves.
func (c *checker) yard() error {
	y, n := &c.t.yard, uint64(0)
	if len(y.all) != len(y.byLeaf) || y.left > len(y.all) {
		return fmt.Errorf("graves of %d leaves, and of %d", len(y.all), len(y.byLeaf))
	}
	for i, g := range y.all {
		if g.place != i || y.byLeaf[g.leaf] != g || !c.t.alive(g.leaf) {
			return fmt.Errorf("graves of leaf %#x are lost", g.leaf)
		}
	}
	for b, leaves := range c.graves {
		n += uint64(b.n)
		if b.leaves != leaves {
			return fmt.Errorf("%d leaves have the graves at %#x, counted %d", leaves, b.at, b.leaves)
		}
	}
	if n != y.total.load() {
		return fmt.Errorf("%d graves, counted %d", n, y.total.load())
	}
	return nil
}
