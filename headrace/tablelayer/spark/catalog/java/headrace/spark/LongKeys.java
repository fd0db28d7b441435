package headrace.spark;

import java.io.Serializable;

/** A set of integers in a table of places, at most half of which are taken. */
final class LongKeys implements Serializable {
    private static final long serialVersionUID = 1L;
    /** 2^64 divided by the golden ratio: products of adjacent keys differ in their upper bits. */
    private static final long FACTOR = 0x9E3779B97F4A7C15L;

    /** Zero: a free place. */
    private final long[] places;
    private final int shift;
    private final boolean hasZero;

    LongKeys(long[] keys) {
        int bits = 65 - Long.numberOfLeadingZeros(Math.max(1, keys.length));
        places = new long[1 << bits];
        shift = 64 - bits;
        boolean zero = false;
        for (long key : keys) {
            zero |= key == 0;
            if (key != 0) {
                places[place(key)] = key;
            }
        }
        hasZero = zero;
    }

    boolean contains(long key) {
        return key == 0 ? hasZero : places[place(key)] == key;
    }

    /** The place of the key, or the free one where it would be. */
    private int place(long key) {
        int at = (int) (key * FACTOR >>> shift);
        while (places[at] != 0 && places[at] != key) {
            at = (at + 1) & (places.length - 1);
        }
        return at;
    }
}
