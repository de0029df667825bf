//go:build !race || !invariants

package mem

const watched = false
