package model

import "drtmx/index"

// Directory is the directory of a generation: its router, and the places of its
// sub-models. The zero Directory is that of an index without models.
type Directory struct {
	Generation
	KeyRouter
	root Root
}

// NewDirectory makes the directory of a generation. It calls read for each chunk.
// pointers are those in the chunks, one for each sub-model.
func NewDirectory(root *Root, g Generation, read func(Pointer) ([]uint64, error)) (d Directory, pointers []uint64, err error) {
	d.Generation, d.root = g, *root
	var starts []index.Key
	for i, c := range g.Chunks {
		b, err := read(c)
		if err != nil {
			return d, nil, err
		}
		var p []uint64
		if starts, p, err = root.chunk(&g, i, b, starts); err != nil {
			return d, nil, err
		}
		pointers = append(pointers, p...)
	}
	d.KeyRouter, err = root.keys.newRouter(starts)
	return d, pointers, err
}

// RouterOf makes the router for sub-models with the given starts.
func (r *Root) RouterOf(starts []index.Key) (KeyRouter, error) { return r.keys.newRouter(starts) }

// Trained reports whether there is a generation.
func (d *Directory) Trained() bool { return d.Subs > 0 }

// Sub checks an accepted copy of the block of sub-model i, and decodes the model
// into s.
func (d *Directory) Sub(i int, b []uint64, s *SubModel) (SubHead, error) {
	return d.root.sub(d.Start(i), b, s)
}

// Same returns the sub-model of another directory that has the same start as
// sub-model i, -1 if there is none.
func (d *Directory) Same(old *Directory, i int) int {
	if old.Trained() {
		if j := old.Route(d.Start(i)); old.Start(j) == d.Start(i) {
			return j
		}
	}
	return -1
}
