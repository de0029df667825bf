package verbs

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"time"
)

const (
	// challengeTime is how long the answer to a challenge may take. An answer that was
	// overheard is as good for so long: see the package documentation.
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

// challenge is a new one for a client.
func (c *challenger) challenge(client [16]byte) (stamp uint64, nonce [challengeNonce]byte) {
	stamp = uint64(time.Since(c.start))
	return stamp, c.nonce(client, stamp)
}

// nonce is that of the challenge with a stamp.
func (c *challenger) nonce(client [16]byte, stamp uint64) (n [challengeNonce]byte) {
	h := hmac.New(sha256.New, c.key[:])
	h.Write(client[:])
	h.Write(binary.LittleEndian.AppendUint64(nil, stamp))
	copy(n[:], h.Sum(nil))
	return n
}

// open reports whether a challenge with this stamp may be answered still.
func (c *challenger) open(stamp uint64) bool {
	now := uint64(time.Since(c.start))
	return stamp != 0 && stamp <= now && now-stamp <= uint64(challengeTime)
}
