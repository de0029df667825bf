package verbs

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"time"
)

const (
	// challengeTime is how long a challenge may be answered. An answer that was overheard
	// can be used as long: see the package documentation.
	challengeTime = 30 * time.Second

	challengeNonce = 16
)

// challenger makes the challenges of an endpoint. It keeps none of them, so that no
// number of requests fills anything: a nonce can be computed again from its stamp
// and the client.
type challenger struct {
	key   [sha256.Size]byte
	start time.Time
}

func newChallenger() *challenger {
	c := &challenger{start: time.Now()}
	_, _ = rand.Read(c.key[:]) // never fails
	return c
}

// challenge returns a new challenge for a client.
func (c *challenger) challenge(client [16]byte) (stamp uint64, nonce [challengeNonce]byte) {
	stamp = uint64(time.Since(c.start))
	return stamp, c.nonce(client, stamp)
}

// nonce returns the nonce of the challenge with a stamp.
func (c *challenger) nonce(client [16]byte, stamp uint64) (n [challengeNonce]byte) {
	h := hmac.New(sha256.New, c.key[:])
	h.Write(client[:])
	h.Write(binary.LittleEndian.AppendUint64(nil, stamp))
	copy(n[:], h.Sum(nil))
	return n
}

// open reports whether a challenge with this stamp may still be answered.
func (c *challenger) open(stamp uint64) bool {
	now := uint64(time.Since(c.start))
	return stamp != 0 && stamp <= now && now-stamp <= uint64(challengeTime)
}
