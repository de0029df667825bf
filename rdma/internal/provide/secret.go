package provide

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"slices"
	"sync"
)

// ProofBytes is the size of a proof. Where there is no room for so much, its first
// ProofBytesMin will do.
const (
	ProofBytes    = sha256.Size
	ProofBytesMin = 16
)

// Secret is what the data servers of a cluster know, and no client does. A peer
// proves with it that it is one, and the secret does not travel. The zero value is
// a random secret that no other process knows. Safe for concurrent use.
type Secret struct {
	mu    sync.Mutex
	bytes []byte
}

// Set replaces the secret. An empty one stands for a random one.
func (s *Secret) Set(secret []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes = slices.Clone(secret)
}

// Proof shows knowledge of the secret to the peer that chose the nonce. Proofs
// for different fabrics differ.
func (s *Secret) Proof(fabric string, nonce []byte) (p [ProofBytes]byte) {
	h := hmac.New(sha256.New, s.get())
	h.Write([]byte("drtmx data server over " + fabric))
	h.Write(nonce)
	h.Sum(p[:0])
	return p
}

// Proves reports whether proof, or the beginning of one, is that for a nonce. How
// long it takes says nothing about the secret.
func (s *Secret) Proves(proof []byte, fabric string, nonce []byte) bool {
	want := s.Proof(fabric, nonce)
	return len(proof) >= ProofBytesMin && len(proof) <= len(want) && hmac.Equal(proof, want[:len(proof)])
}

func (s *Secret) get() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.bytes) == 0 {
		s.bytes = make([]byte, ProofBytes)
		_, _ = rand.Read(s.bytes) // never fails
	}
	return s.bytes
}
