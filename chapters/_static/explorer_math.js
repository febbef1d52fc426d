// One head and its gradients, line by line what attnmath.attention_map and attnmath.attention_vjp
// compute. A matrix is an array of rows. Nothing here needs a page: tests/book/test_explorer.py runs this
// file by itself and compares it with the package.
const explorerMath = (() => {
  const dot = (x, y) => x.reduce((sum, entry, l) => sum + entry * y[l], 0);
  const minus = (x, y) => x.map((entry, l) => entry - y[l]);
  const T = (X) => X[0].map((_, j) => X.map((row) => row[j]));
  const times = (X, Y) => X.map((row) => T(Y).map((column) => dot(row, column)));
  const scaled = (gamma, X) => X.map((row) => row.map((entry) => gamma * entry));

  function softmax(row) {
    const largest = Math.max(...row);
    if (largest === -Infinity) return row.map(() => 0); // a query that may look nowhere
    const E = row.map((score) => Math.exp(score - largest));
    const sum = E.reduce((total, entry) => total + entry, 0);
    return E.map((entry) => entry / sum);
  }

  function head({ Q, K, V, B, gamma, dO }) {
    const A = scaled(gamma, times(Q, T(K))).map((row, i) => row.map((score, j) => score + B[i][j]));
    const P = A.map(softmax);
    const O = times(P, V);
    const dV = times(T(P), dO);
    const dP = times(dO, T(V));
    const D = dO.map((row, i) => [dot(row, O[i])]);
    const dA = P.map((row, i) => row.map((weight, j) => weight * (dP[i][j] - D[i][0])));
    const dQ = scaled(gamma, times(dA, K));
    const dK = scaled(gamma, times(T(dA), Q));
    return { A, P, O, dP, D, dA, dQ, dK, dV };
  }

  // The settings of the page, as rows of numbers, and the matrices that they stand for.
  const rows = (numbers, width) =>
    Array.from({ length: numbers.length / width }, (_, i) => numbers.slice(i * width, (i + 1) * width));
  const arrow = (degrees, length) => {
    const angle = (degrees * Math.PI) / 180;
    return [length * Math.cos(angle), length * Math.sin(angle)];
  };
  function matrices({ Q, K, V, B, read, t, angle, length }) {
    const bias = B.map((entry, place) => (read[place] ? entry : -Infinity));
    return {
      Q: rows(Q, 2), K: rows(K, 2), V: rows(V, 2), B: rows(bias, K.length / 2), gamma: 2 ** -t[0],
      dO: angle.map((degrees, i) => arrow(degrees, length[i])),
    };
  }

  // The picture: how far each value lies, seen from the output, in the direction of do; the sign of
  // that, in which rounding has no say; and a radius whose area grows with the weight.
  const along = (dO, V, O) => dO.map((row, i) => V.map((value) => dot(row, minus(value, O[i]))));
  const sign = (number) => (Math.abs(number) < 1e-12 ? 0 : Math.sign(number));
  const radius = (weight) => Math.sqrt(36 + 448 * weight);

  return { head, matrices, along, sign, radius };
})();
