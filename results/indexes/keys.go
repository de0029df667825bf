package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"

	"drtmx/internal/keysets"
)

const (
	keySeed    = 20201104
	rowsOfScan = 100
)

// sections are the keys of a file: those that are loaded, ascending; those that are
// inserted, in random order; GETs of loaded keys; GETs of all keys; and starts of
// scans, which all are loaded keys.
func sections(set keysets.Set, keys, gets, scans int) ([5][]uint64, error) {
	all := set.Draw(rand.New(rand.NewPCG(keySeed, 1)), keys)
	if len(all) < 4*rowsOfScan {
		return [5][]uint64{}, fmt.Errorf("%s: %d keys, want at least %d", set.Name, len(all), 4*rowsOfScan)
	}
	var loaded, inserted []uint64
	for i, k := range all {
		if i%2 == 0 {
			loaded = append(loaded, k)
		} else {
			inserted = append(inserted, k)
		}
	}
	r := rand.New(rand.NewPCG(keySeed, 2))
	r.Shuffle(len(inserted), func(i, j int) { inserted[i], inserted[j] = inserted[j], inserted[i] })
	draw := func(n int, of []uint64) []uint64 {
		drawn := make([]uint64, n)
		for i := range drawn {
			drawn[i] = of[r.IntN(len(of))]
		}
		return drawn
	}
	return [5][]uint64{loaded, inserted, draw(gets, loaded), draw(gets, all), draw(scans, loaded[:len(loaded)-rowsOfScan])}, nil
}

// writeKeys writes the file that all programs read.
func writeKeys(path string, s [5][]uint64) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriterSize(f, 1<<20)
	var word [8]byte
	put := func(v uint64) {
		binary.LittleEndian.PutUint64(word[:], v)
		_, _ = w.Write(word[:]) // Flush returns the error
	}
	for _, keys := range s {
		put(uint64(len(keys)))
		for _, k := range keys {
			put(k)
		}
	}
	return w.Flush()
}
